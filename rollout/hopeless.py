"""When failing draws mean that the run itself cannot work. Pure.

One bad row is dropped and forgotten. A run in which nothing has ever worked would drop its whole
dataset, row by row, while its user waits.
"""

from dataclasses import dataclass, field

ENOUGH = 64


@dataclass
class Hopeless:
    """Counts distinct rows that failed before anything worked."""

    rows: set[int] = field(default_factory=set)
    something_worked: bool = False
    reason: str | None = None

    def worked(self) -> None:
        """A group was completed: failures from now on are the rows' own."""
        self.something_worked = True
        self.rows.clear()
        self.reason = None

    def failed(self, row: int, rows: int, reason: str) -> None:
        """Note that `row`, of a dataset of `rows`, failed. Sets `reason` once all its rows, or
        the first 64 that were tried, have failed and nothing has worked."""
        if self.something_worked:
            return
        self.rows.add(row)
        if len(self.rows) >= min(rows, ENOUGH):
            self.reason = reason
