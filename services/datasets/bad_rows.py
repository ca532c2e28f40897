"""Rows of a file that cannot become rows of a dataset: they are counted, and the first are named.

One bad row stops only itself: the others are still read, so a refusal names all that is to be
mended, and an upload that skips bad rows keeps the rest. Pure.
"""

from collections.abc import Callable

from services.datasets.row_checks import DatasetError

OnBadRow = Callable[[DatasetError], None]

NAMED = 5
"""Bad rows that are named."""
WAYS = "out: `--skip-bad-rows` on the command line, `bad_rows=skip` over the API"


class BadRows:
    """The bad rows of an upload, so far."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        """What is wrong with the first NAMED, each with its place."""

    def add(self, error: DatasetError, file: str = "") -> None:
        """Count a bad row. `file`: its file, if `error` does not name it."""
        self.count += 1
        if self.count <= NAMED:
            self.first.append(f"{file}: {error}" if file else str(error))

    def refusal(self) -> DatasetError:
        """Return the error of an upload that does not skip bad rows."""
        if self.count == 1:
            return DatasetError(f"{self.first[0]}. Mend this row, or leave it {WAYS}")
        listed = self._listed()
        return DatasetError(
            f"{self.count:,} rows cannot be used: {listed}. Mend them, or leave them {WAYS}"
        )

    def warnings(self) -> list[str]:
        """Return the warning of an upload that left out bad rows."""
        rows = "row was" if self.count == 1 else "rows were"
        return [f"{self.count:,} bad {rows} left out: {self._listed()}"] if self.count else []

    def _listed(self) -> str:
        more = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {more:,} more" if more else "")
