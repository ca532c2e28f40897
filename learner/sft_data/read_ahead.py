"""Read the rows of the next step on a thread while a step is trained.

The next rows do not depend on training. A checkpoint holds the position of the trained step, so a
run that was killed reads the same rows again.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from learner.batch.sft_rows import Example
from learner.batch.sft_steps import SFTStep, StepRow
from learner.sft_data.run_rows import SupervisedRows

Read = tuple[SFTStep, list[Example]]


class ReadAhead:
    """Reads the steps of `rows`, one ahead. It must be closed: its thread must not outlive the
    run."""

    def __init__(
        self, rows: SupervisedRows, dealt: Callable[[list[StepRow]], list[StepRow]]
    ) -> None:
        """`dealt` returns this rank's part of a step's rows."""
        self._rows, self._dealt = rows, dealt
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._reading: Future[Read] | None = None

    def next(self, is_last: bool) -> Read:
        """Return the next step, and this rank's part of its rows. Unless the step `is_last`, the
        thread begins to read the step after it. Raises as `SupervisedRows.examples` does."""
        read = self._read() if self._reading is None else self._reading.result()
        self._reading = None if is_last else self._thread.submit(self._read)
        return read

    def wait(self) -> None:
        """Wait until the thread is idle, because the token files support one reader at a time.
        `next` raises the thread's errors."""
        if self._reading is not None:
            self._reading.exception()

    def close(self) -> None:
        """Wait for the thread, and end it."""
        self._thread.shutdown()

    def _read(self) -> Read:
        step = self._rows.steps.next()
        assert step is not None
        return step, self._rows.examples(self._dealt(step.uses))
