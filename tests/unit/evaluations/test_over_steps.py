"""Rows of a held-out set over the evaluations of a run."""

import pytest

from services.evaluations.answers import Measured
from services.evaluations.over_steps import Change, RowValues, changes, row_values


def row(number: int, *statuses: str, rewards: list[float | None] | None = None) -> Measured:
    count = len(statuses)
    given: list[float | None] = [None] * count if rewards is None else rewards
    return Measured(number, None, [1] * count, [False] * count, given, list(statuses))


def test_a_row_has_the_share_of_its_correct_answers_at_each_evaluation() -> None:
    first = [row(0, "wrong", "correct"), row(1, "wrong", "wrong")]
    second = [row(0, "correct", "correct"), row(2)]

    assert row_values([first, second]) == (
        "accuracy",
        [
            RowValues(0, None, [0.5, 1.0]),
            RowValues(1, None, [0.0, None]),
            RowValues(2, None, [None, 0.0]),
        ],
    )


def test_answers_that_are_only_rated_have_their_mean_reward() -> None:
    rated = [row(0, "scored", "scored", rewards=[0.2, 0.4]), row(1, "scored", rewards=[None])]
    metric, rows = row_values([rated])

    assert metric == "reward"
    assert [each.values for each in rows] == [[pytest.approx(0.3)], [None]]


@pytest.mark.parametrize(
    ("values", "has"),
    [
        ([0.0, None, 1.0], {"better"}),
        ([1.0, 0.5], {"worse"}),
        ([0.0, 1.0, 0.5], {"better", "unsteady"}),
        ([0.5, 0.5], {"steady"}),
        ([None, None], {"steady"}),
    ],
)
def test_a_row_changes_by_its_first_and_last_value(
    values: list[float | None], has: set[Change]
) -> None:
    every: tuple[Change, ...] = ("better", "worse", "unsteady", "steady")

    assert {change for change in every if RowValues(0, None, values).has(change)} == has


def test_an_evaluation_tells_which_rows_turned_right_and_which_wrong_since_the_one_before() -> None:
    turned_right = [RowValues(number, None, [0.0, 1.0]) for number in range(5)]
    rows = [*turned_right, RowValues(5, None, [1.0, 0.0]), RowValues(6, None, [None, 1.0])]

    # 2 · (C(6, 0) + C(6, 1)) / 2^6
    better, worse, p = changes(rows, 1)
    assert (better, worse) == (5, 1)
    assert p == pytest.approx(0.21875)
    assert changes(rows, 0) == (0, 0, None)
