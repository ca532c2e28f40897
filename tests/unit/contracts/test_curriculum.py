"""A curriculum samples what is solved now and then, and decides the same for the same task."""

import pytest

from services.contracts.config.data import Curriculum
from services.contracts.rows.curriculum import probability, sampled


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(None, 1.0), (0.5, 1.0), (0.25, 0.75), (0.9, 0.36), (0.0, 0.2), (1.0, 0.2)],
)
def test_the_probability_is_the_variance_of_success(rate: float | None, expected: float) -> None:
    assert probability(Curriculum(least=0.2), rate) == pytest.approx(expected)


def test_each_task_is_decided_once_for_all_and_as_often_as_is_probable() -> None:
    found = [sampled(Curriculum(), 0.9, 0, task) for task in range(1000)]
    assert found == [sampled(Curriculum(), 0.9, 0, task) for task in range(1000)]
    # 0.36 ± 4 standard errors of 0.015.
    assert 300 < sum(found) < 420
    assert found != [sampled(Curriculum(), 0.9, 1, task) for task in range(1000)]
    assert all(sampled(Curriculum(), None, 0, task) for task in range(1000))
