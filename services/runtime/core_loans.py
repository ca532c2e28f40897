"""Cores of another part of this installation, for as long as that part leaves them idle.

On a machine without a GPU, vLLM engines and learner ranks each have cores of their own. A process
holds a lock of its side while it computes. A process that finds nobody holding the other side's
lock uses the cores of that side as well, and asks again before each pass of its model. A lock ends
with its process, however that dies. Cores that other programs use are left to them: threads of one
product wait for each other, so that one on a busy core makes all of them late.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from services.runtime.file_lock import try_lock

LOCKS = "HEADRACE_CORE_LOCKS"
"""Environment variable: the folder of the locks."""
BORROWED = "HEADRACE_BORROWED_CORES"
"""Environment variable: the cores of the other side that this process may use, as `2,3`."""

Side = Literal["generating", "training"]
OTHER: dict[Side, Side] = {"generating": "training", "training": "generating"}


class CoreLoan:
    """What one process tells the other side, and what it may borrow from it."""

    def __init__(
        self,
        folder: Path,
        side: Side,
        own: int,
        cores: int,
        linger: float = 0.0,
        loadavg: Path = Path("/proc/loadavg"),
    ) -> None:
        """`own`: cores that it has; `cores`: how many it may borrow. It counts as computing until
        `linger` seconds have passed without, so that pauses between two passes lend nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.own, self.cores = own, cores
        self._all = len(os.sched_getaffinity(0))
        self._loadavg = loadavg
        self._linger = linger
        self._own = os.open(folder / side, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._other = os.open(folder / OTHER[side], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._changed = threading.Condition()
        self._computing = self._held = False
        self._ended = 0.0
        if linger:
            threading.Thread(target=self._release_later, name="core-loan", daemon=True).start()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A block in which this process uses its own cores."""
        with self._changed:
            self._computing = True
            if not self._held:
                # It waits for no longer than another process takes to ask `available`.
                fcntl.flock(self._own, fcntl.LOCK_SH)
                self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._computing, self._ended = False, time.monotonic()
                if self._linger:
                    self._changed.notify()
                else:
                    self._release()

    def available(self) -> int:
        """How many cores of the other side this process may use now."""
        if not try_lock(self._other):
            return 0
        fcntl.flock(self._other, fcntl.LOCK_UN)
        # `0.50 0.25 0.10 RUNNING/ALL NEWEST`: threads that run or could, this one among them.
        running = int(self._loadavg.read_text().split()[3].partition("/")[0])
        return max(0, min(self.cores, self._all - self.own - (running - 1)))

    def _release(self) -> None:
        fcntl.flock(self._own, fcntl.LOCK_UN)
        self._held = False

    def _release_later(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held and not self._computing)
                left = self._ended + self._linger - time.monotonic()
                if left <= 0:
                    self._release()
            if left > 0:
                time.sleep(left)


def core_loan(side: Side, own: int, linger: float = 0.0) -> CoreLoan | None:
    """The loan that the environment describes, perhaps of no core to borrow; None without one."""
    folder, borrowed = os.environ.get(LOCKS), len(borrowed_cores())
    return CoreLoan(Path(folder), side, own, borrowed, linger) if folder else None


def borrowed_cores() -> list[int]:
    """The cores of the other side that the environment names."""
    return [int(core) for core in os.environ.get(BORROWED, "").split(",") if core.isdigit()]
