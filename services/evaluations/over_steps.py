"""Rows of a held-out set over the evaluations of a run: which turned right, and which wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from services.evaluations.answers import Measured
from services.evaluations.comparison import Metric, mcnemar, value_of
from services.evaluations.outcome import only_rated

Change = Literal["better", "worse", "unsteady", "steady"]
"""How a row's last value compares with its first. `unsteady`: it went up and down; `steady`: all
its values are equal."""


@dataclass(frozen=True)
class RowValues:
    """A row and its value at each evaluation, oldest first: the share of its answers that are
    correct, or its mean reward. None if it has no answer there."""

    row: int
    category: str | None
    values: list[float | None]

    def has(self, change: Change) -> bool:
        """Whether the row changed in this way."""
        known = [value for value in self.values if value is not None]
        steps = [after - before for before, after in pairwise(known)]
        match change:
            case "better":
                return bool(known) and known[-1] > known[0]
            case "worse":
                return bool(known) and known[-1] < known[0]
            case "unsteady":
                return any(step > 0 for step in steps) and any(step < 0 for step in steps)
            case "steady":
                return not any(steps)


def row_values(evaluations: Sequence[Sequence[Measured]]) -> tuple[Metric, list[RowValues]]:
    """Return what the values are, and all rows by number. Each evaluation is a list of rows."""
    metric: Metric = (
        "reward" if only_rated([row for rows in evaluations for row in rows]) else "accuracy"
    )
    by_row = [{row.row: row for row in rows} for rows in evaluations]
    categories = {row.row: row.category for rows in evaluations for row in rows}
    return metric, [
        RowValues(number, category, [_value(rows.get(number), metric) for rows in by_row])
        for number, category in sorted(categories.items())
    ]


def changes(rows: Sequence[RowValues], at: int) -> tuple[int, int, float | None]:
    """Return how many rows are better at evaluation `at` than at the one before, how many are
    worse, and the probability of a division at least as uneven by chance (the exact sign test).
    The probability is None without a common row."""
    pairs = [(row.values[at - 1], row.values[at]) for row in rows] if at else []
    differences = [
        after - before for before, after in pairs if before is not None and after is not None
    ]
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    return better, worse, mcnemar(differences) if differences else None


def _value(row: Measured | None, metric: Metric) -> float | None:
    return None if row is None else value_of(row, metric)
