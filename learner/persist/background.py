"""Work that the training loop hands to a thread, in order.

The loop's next call here raises an error of the thread, because only the loop can end the run with
a reason. After an error the thread does no more work.
"""

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from services.runtime.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class Background(Generic[T]):
    """Does `work` on each submitted item, one at a time, on its own thread."""

    def __init__(self, name: str, work: Callable[[T], None], waiting: int = 1) -> None:
        """`waiting`: items that may wait for the thread; 0: any number."""
        self._name, self._work = name, work
        self._waiting: queue.Queue[T | None] = queue.Queue(maxsize=waiting)
        self._error: BaseException | None = None
        # Inherits the logger's `run`, which a new thread would lack.
        inherited = contextvars.copy_context()
        self._thread = threading.Thread(target=inherited.run, args=(self._loop,), name=name)
        self._thread.daemon = True
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._waiting.unfinished_tasks > 0

    def submit(self, item: T) -> None:
        """Submit an item. Blocks only while as many items wait as may."""
        self.check()
        self._waiting.put(item)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Wait until all work is done. Raises the thread's error."""
        self._waiting.join()
        self.check()

    def close(self) -> None:
        """Finish the work and end the thread. Raises nothing."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _loop(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                if self._error is None:
                    self._work(item)
            except BaseException as error:
                log.error(f"the {self._name} failed", reason=str(error))
                self._error = error
            finally:
                self._waiting.task_done()
        self._waiting.task_done()
