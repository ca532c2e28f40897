"""The one rule that fails a run which cannot work. Pure.

A finished group resets the count of failures. Limits by cause:

- rows: all rows of the dataset, or 64 of them. One bad row is dropped and forgotten. Without this
  limit a run in which nothing works would drop its whole dataset while its user waits.
- vLLM dies or does not start: `vllm_start_tries` times in a row. The cause may be this host.
- no worker can serve the run (its config, dataset or episode type): once.

A run at its limit fails with the reason, unless other workers show that this host is at fault.
"""

from dataclasses import dataclass, field

MAX_ROWS = 64


class RunCannotWork(RuntimeError):
    """The run cannot go on, on any worker. The text is the reason for the user."""


@dataclass
class FailureLimit:
    start_tries: int = 1
    failures: int = 0
    """Failures in a row, of vLLM or of the run. Each one lengthens the wait before the next try."""
    rows: set[str] = field(default_factory=set)
    worked: bool = False
    """Whether a group was finished since the last start of work."""
    reason: str | None = None
    """Why the run cannot work, once a limit is reached."""
    host_may_be_at_fault: bool = False

    def start(self) -> None:
        """Reset the failed rows: work begins, perhaps again after a failure."""
        self.rows.clear()
        self.worked, self.reason = False, None

    def group_finished(self) -> None:
        """Note that the run works: from now on a failed row is the row's own fault."""
        self.start()
        self.worked, self.failures = True, 0

    def row_failed(self, row: str, rows: int, reason: str) -> None:
        """Note that `row` of the dataset's `rows` failed."""
        if self.worked:
            return
        self.rows.add(row)
        if len(self.rows) >= min(rows, MAX_ROWS):
            self.reason, self.host_may_be_at_fault = reason, False

    def vllm_failed(self, reason: str) -> None:
        self.failures += 1
        self.reason = reason if self.failures >= self.start_tries else None
        self.host_may_be_at_fault = True

    def run_failed(self, reason: str) -> None:
        """Note that no worker can serve the run, or that its rows reached their limit."""
        self.failures += 1
        self.reason, self.host_may_be_at_fault = reason, False
