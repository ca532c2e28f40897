"""`data.filter`: which mean rewards lie outside."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.contracts.config.data import DatasetFilter


def test_a_reward_on_a_bound_of_the_filter_is_inside() -> None:
    both = DatasetFilter(low=0.25, high=0.75)
    assert both.outside(0.25) is None
    assert both.outside(0.75) is None
    assert both.outside(0.2) == "below data.filter.low 0.25"
    assert both.outside(1.0) == "above data.filter.high 0.75"
    assert DatasetFilter(high=0.9).outside(-1.0) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "filter needs low or high"),
        ({"low": 0.5, "high": 0.5}, "low 0.5 is not below high 0.5"),
        ({"low": 0.1, "max_share": 1.0}, "less than or equal to 0.9"),
        ({"low": 0.1, "passes": 0}, "greater than or equal to 1"),
    ],
)
def test_a_filter_that_cannot_work_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DatasetFilter(**fields)
