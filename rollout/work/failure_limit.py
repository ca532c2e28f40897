"""The one rule that ends a run which cannot work. Pure.

Failures count until something works; a finished group starts the count again. Limits by cause:

- rows: all rows of the dataset, or 64 of them. One bad row is dropped and forgotten, but a run in
  which nothing ever works would drop its whole dataset while its user waits.
- vLLM dies or does not start: `vllm_start_tries` in a row. The cause may be this host.
- no worker can serve the run (its config, dataset or episode type): once.

A run at its limit ends with the reason, unless other workers show that the fault is this host's.
"""

from dataclasses import dataclass, field

MAX_ROWS = 64


class RunCannotWork(RuntimeError):
    """The run cannot go on, on any worker; the text is the reason for the user."""


@dataclass
class FailureLimit:
    """The failures of one run on one worker."""

    start_tries: int = 1
    failures: int = 0
    """In a row, of vLLM or of the run: the next try waits longer."""
    rows: set[str] = field(default_factory=set)
    worked: bool = False
    """Whether a group was finished since the last start of work."""
    reason: str | None = None
    """Why the run cannot work, once a limit is reached."""
    host_may_be_at_fault: bool = False

    def start(self) -> None:
        """Work begins, perhaps again after a failure."""
        self.rows.clear()
        self.worked, self.reason = False, None

    def group_finished(self) -> None:
        """Something works: from now on a failed row is that row's fault."""
        self.start()
        self.worked, self.failures = True, 0

    def row_failed(self, row: str, rows: int, reason: str) -> None:
        """The row that is called so, of `rows`, failed."""
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
        """The run cannot be served, or its rows reached their limit."""
        self.failures += 1
        self.reason, self.host_may_be_at_fault = reason, False
