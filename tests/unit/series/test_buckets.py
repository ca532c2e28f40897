"""Buckets: their width, their borders, and how values are shortened."""

import numpy as np
import pytest

from services.series import Buckets, bucket_width, rounded


@pytest.mark.parametrize(
    ("low", "high", "points", "width"),
    [
        (1, 20_000, 1000, 20),
        (1, 20_001, 1000, 50),
        (1, 100, 10, 10),
        (1, 1001, 1000, 2),
        (0, 1, 10, 0.2),
        (5, 5, 10, 1e-10),
        (0, 1e12, 3, 5e11),
    ],
)
def test_the_width_is_the_least_round_number_that_gives_few_enough_buckets(
    low: float, high: float, points: int, width: float
) -> None:
    assert bucket_width(low, high, points) == pytest.approx(width)


def test_a_bucket_has_the_mean_and_the_extremes_of_its_values_and_ends_at_a_multiple() -> None:
    places = np.array([1, 2, 3, 4, 5, 6, 7, 11], np.uint32)
    values = np.array([1, 3, 2, 6, 6, 6, 5, -1], np.float32)

    buckets = Buckets(places, 3.0)
    mean, least, largest = buckets.cut(values)

    assert buckets.places.tolist() == [3, 6, 7, 11]
    assert buckets.count.tolist() == [3, 3, 1, 1]
    assert mean.tolist() == [2, 6, 5, -1]
    assert least.tolist() == [1, 6, 5, -1]
    assert largest.tolist() == [3, 6, 5, -1]


@pytest.mark.parametrize("points", [1, 2, 7, 100, 999])
def test_buckets_never_outnumber_the_points(points: int) -> None:
    places = np.cumsum(np.linspace(0.1, 3, 1000))
    width = bucket_width(places[0], places[-1], points)
    buckets = Buckets(places, width)
    assert len(buckets.places) <= points
    assert buckets.count.sum() == 1000


def test_values_have_five_digits_whatever_their_size() -> None:
    values = np.array([0, 0.123456789, -98765.4321, 1.5e-7, 123456789.0, 3e20], np.float64)
    assert rounded(values).tolist() == [0, 0.12346, -98765.0, 1.5e-7, 123460000.0, 3e20]
