"""Computes the figures of an evaluation: accuracy and reward with intervals, pass@k, lengths, and
the same for each category. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, pvariance

import numpy as np

from services.contracts.pass_at import every_k, pass_at
from services.contracts.scores import VERDICTS, ScoreStatus
from services.evaluations.answers import Measured

RESAMPLES = 2000
CHUNK = 1 << 22
"""Drawn rows that are held at once."""
SEED = 0
"""Fixed, so the same answers give the same interval."""
CONFIDENCE = 0.95
MOST_CATEGORIES = 100


@dataclass(frozen=True)
class EvaluationFigures:
    """Figures by the names of docs/metrics.md, without `evaluation/`."""

    metrics: dict[str, float]
    categories: dict[str, dict[str, float]]


def outcome(rows: Sequence[Measured], samples: int) -> EvaluationFigures:
    """Return the figures of an evaluation with `samples` samples a row. A row that could not be
    answered counts as `samples` wrong answers. Beyond MOST_CATEGORIES, the smallest categories are
    counted as `other`."""
    rated = only_rated(rows)
    by_category: dict[str, list[Measured]] = {}
    for row in rows:
        if row.category is not None:
            by_category.setdefault(row.category, []).append(row)
    if len(by_category) > MOST_CATEGORIES:
        largest = sorted(by_category, key=lambda name: (-len(by_category[name]), name))
        smallest = [by_category.pop(name) for name in largest[MOST_CATEGORIES - 1 :]]
        # Added last: a category of the dataset may be called `other`, and be small.
        by_category.setdefault("other", []).extend(row for some in smallest for row in some)
    return EvaluationFigures(
        _figures(rows, samples, rated),
        {name: _figures(by_category[name], samples, rated) for name in sorted(by_category)},
    )


def only_rated(rows: Sequence[Measured]) -> bool:
    """Return whether verifiers only rate answers, without a verdict."""
    statuses = {status for row in rows for status in row.statuses}
    return ScoreStatus.SCORED in statuses and VERDICTS.isdisjoint(statuses)


def _figures(rows: Sequence[Measured], samples: int, rated: bool) -> dict[str, float]:
    lengths = [tokens for row in rows for tokens in row.tokens]
    rewards = [[reward for reward in row.rewards if reward is not None] for row in rows]
    figures: dict[str, float] = {
        "rows": len(rows),
        "failed": sum(not row.tokens for row in rows),
    }
    if scored := [known for known in rewards if known]:
        # Rows have equal weight, as in the interval and in a comparison, even if verifiers broke
        # for some samples.
        means = [fmean(known) for known in scored]
        verdicts = all(reward in (0, 1) for known in scored for reward in known)
        low, high = wilson(means, samples) if verdicts else bootstrap(means)
        figures |= {"reward": fmean(means), "reward_low": low, "reward_high": high}
    else:
        figures |= {"reward": 0.0}
    if not rated:
        correct = [row.correct for row in rows]
        low, high = wilson([count / samples for count in correct], samples)
        accuracy = sum(correct) / (samples * len(rows))
        figures |= {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high}
        # pass@1 is the accuracy.
        figures |= {
            f"pass_at_{k}": fmean(pass_at(k, samples, count) for count in correct)
            for k in every_k(samples)
            if k > 1
        }
    if lengths:
        figures |= {
            "tokens_mean": fmean(lengths),
            "tokens_p95": float(np.percentile(lengths, 95)),
            "truncated": fmean(cut for row in rows for cut in row.truncated),
        }
    return figures


def wilson(shares: Sequence[float], samples: int) -> tuple[float, float]:
    """Return the score interval (Wilson 1927) at CONFIDENCE of the mean of `shares`. A share is the
    part of a row's `samples` answers that are right.

    The answers of one row are correlated, so the effective number of answers is smaller: the n for
    which p(1 - p)/n is the variance of the mean over rows. With one answer a row, or equal shares
    in all rows, n is the number of rows: four wrong answers mean that at most 0.49 are right.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    p, rows = fmean(shares), len(shares)
    spread = pvariance(shares)
    n = min(rows * p * (1 - p) / spread, rows * samples) if spread > 0 else rows
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) at CONFIDENCE of the mean of `values`, one a row.
    Draws all rows with replacement, RESAMPLES times."""
    known, count = np.asarray(values, np.float64), len(values)
    random, at_once = np.random.default_rng(SEED), max(1, CHUNK // count)
    means = []
    for begin in range(0, RESAMPLES, at_once):
        draws = min(at_once, RESAMPLES - begin)
        means.append(known[random.integers(count, size=(draws, count))].mean(axis=1))
    outside = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate(means), [outside, 100 - outside])
    return float(low), float(high)
