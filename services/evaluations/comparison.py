"""Compares two evaluations on the same rows: a paired test, and the rows that changed.

With one answer a row and verdicts, the test is McNemar's (1947) in its exact form. It gives the
probability of a split at least as uneven among the rows that only one evaluation got right, if both
were equally good. Otherwise it is a sign-flip permutation test (Fisher 1935) on the rows'
differences in the share of correct answers, or in mean reward. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from services.evaluations.answers import Measured
from services.evaluations.outcome import bootstrap, only_rated, wilson

Metric = Literal["accuracy", "reward"]
EXACT_ROWS = 16
"""Up to this number of differing rows, all assignments of signs are counted."""
FLIPS = 20_000
"""Beyond EXACT_ROWS, this number of assignments is drawn."""
CHUNK = 1 << 22
SEED = 0


DESCRIBED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, config=DESCRIBED)
class Changed:
    """A row on which the two differ: the share of its answers that are correct, or mean reward."""

    row: int
    """Index of the dataset row."""
    value: float
    """The value of this evaluation."""
    other: float
    """The value of the other evaluation."""

    @property
    def difference(self) -> float:
        return self.value - self.other


@dataclass(frozen=True, config=DESCRIBED)
class Comparison:
    """One evaluation against another, on the rows that both have."""

    metric: Metric
    """The compared quantity: `reward` if verifiers only rate answers."""
    rows: int
    """Rows that both have."""
    value: float
    """The mean of this evaluation on these rows."""
    other: float
    """The mean of the other evaluation on these rows."""
    difference: float
    """`value` minus `other`."""
    low: float
    """Lower end of the difference's interval at 95 %: Newcombe's with one verdict a row, else a
    bootstrap."""
    high: float
    """Upper end of the interval."""
    test: Literal["mcnemar", "sign_flip"]
    """`mcnemar` (exact): one answer a row. `sign_flip`: a permutation test on the rows."""
    p: float
    """The probability of a difference at least as large by chance."""
    changed: list[Changed]
    """The rows that differ, sorted by the size of the difference, then by this evaluation's
    advantage."""

    def first(self, rows: int) -> "Comparison":
        """Return the same comparison with at most `rows` changed rows."""
        return replace(self, changed=self.changed[:rows])

    @property
    def better(self) -> int:
        """Number of rows on which this evaluation is better."""
        return sum(row.difference > 0 for row in self.changed)

    @property
    def worse(self) -> int:
        """Number of rows on which the other evaluation is better."""
        return len(self.changed) - self.better


def compare(these: Sequence[Measured], others: Sequence[Measured]) -> Comparison:
    """Compare two evaluations by row. A row that could not be answered counts as wrong. A
    comparison of rewards leaves out rows without a reward in both. Raises ValueError without a
    common row."""
    our_rows, their_rows = ({row.row: row for row in rows} for rows in (these, others))
    common = sorted(our_rows.keys() & their_rows.keys())
    metric: Metric = "reward" if only_rated([*these, *others]) else "accuracy"
    values = [
        (row, mine, other)
        for row in common
        if (mine := value_of(our_rows[row], metric)) is not None
        and (other := value_of(their_rows[row], metric)) is not None
    ]
    if not values:
        raise ValueError("the two evaluations have no answered row in common")
    differences = [mine - other for _, mine, other in values]
    single = all(len(row.statuses) <= 1 for row in (*these, *others))
    exact = metric == "accuracy" and single
    changed = [Changed(row, mine, other) for row, mine, other in values if mine != other]
    pairs = [(mine, other) for _, mine, other in values]
    low, high = newcombe(pairs) if exact else bootstrap(differences)
    return Comparison(
        metric=metric,
        rows=len(values),
        value=fmean(mine for _, mine, _ in values),
        other=fmean(other for _, _, other in values),
        difference=fmean(differences),
        low=low,
        high=high,
        test="mcnemar" if exact else "sign_flip",
        p=mcnemar(differences) if exact else sign_flip(differences),
        changed=sorted(changed, key=lambda row: (-abs(row.difference), -row.difference, row.row)),
    )


def newcombe(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the interval of the difference of two shares on the same rows (Newcombe 1998, method
    10), from their Wilson intervals and the correlation of the `pairs` of 0 and 1."""
    ones, twos = zip(*pairs, strict=True)
    (p, low, high), (q, below, above) = (
        (fmean(values), *wilson(values, 1)) for values in (ones, twos)
    )
    both = fmean(mine * two for mine, two in pairs)
    scale = math.sqrt(p * (1 - p) * q * (1 - q))
    phi = (both - p * q) / scale if scale > 0 else 0.0

    def distance(mine: float, two: float) -> float:
        return math.sqrt(max(0.0, mine * mine - 2 * phi * mine * two + two * two))

    return p - q - distance(p - low, above - q), p - q + distance(high - p, q - below)


def mcnemar(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact test: the probability that min(b, c) or fewer of
    the n differing rows are on one side, with probability 1/2 each."""
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    n, least = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    # In logarithms: 2^-n is 0 as a float from n = 1075 on.
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
        for k in range(least + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the permutation test: the share of all assignments of signs
    to the rows' differences whose sum is at least as far from 0 as the observed one. Beyond
    EXACT_ROWS differing rows, of FLIPS random assignments, including the observed one."""
    known = np.asarray([difference for difference in differences if difference != 0], np.float64)
    count = len(known)
    if count == 0:
        return 1.0
    # Sums of the same numbers in another order may differ by rounding.
    seen = abs(known.sum()) - 1e-9 * np.abs(known).sum()
    if count <= EXACT_ROWS:
        signs = 1 - 2 * ((np.arange(1 << count)[:, None] >> np.arange(count)) & 1)
        return float(np.mean(np.abs(signs @ known) >= seen))
    random, as_far, at_once = np.random.default_rng(SEED), 0, max(1, CHUNK // count)
    for begin in range(0, FLIPS, at_once):
        draws = min(at_once, FLIPS - begin)
        signs = 1 - 2 * random.integers(2, size=(draws, count), dtype=np.int8)
        as_far += int((np.abs(signs @ known) >= seen).sum())
    return (as_far + 1) / (FLIPS + 1)


def value_of(row: Measured, metric: Metric) -> float | None:
    """Return the share of a row's answers that are correct, or their mean reward. None if none has
    a reward."""
    if metric == "accuracy":
        return row.correct / len(row.statuses) if row.statuses else 0.0
    known = [reward for reward in row.rewards if reward is not None]
    return fmean(known) if known else None
