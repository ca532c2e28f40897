"""The moving average of a supervised run's loss."""

import math

import pytest

from learner.metrics.sft_metrics import smoothed, unbiased


def averages(*losses: float) -> list[float]:
    """The average after each loss, as a run shows it."""
    found: list[float] = []
    average = 0.0
    for steps, loss in enumerate(losses):
        average = smoothed(average, loss, steps)
        found.append(unbiased(average, steps + 1))
    return found


def test_the_average_is_divided_by_the_sum_of_its_weights() -> None:
    # .9 · .1 · 2 + .1 · 5, over .9 · .1 + .1.
    assert averages(2.0, 5.0) == pytest.approx([2.0, (0.18 + 0.5) / 0.19])


def test_a_nan_loss_leaves_the_average_unchanged() -> None:
    assert averages(2.0, math.nan, math.inf) == pytest.approx([2.0, 2.0, 2.0])
    assert averages(2.0, math.nan, 2.0, 2.0)[-1] == pytest.approx(2.0)


def test_an_average_begins_with_the_first_finite_loss() -> None:
    assert averages(math.nan, 2.0, 2.0) == pytest.approx([0.0, 2.0, 2.0])
