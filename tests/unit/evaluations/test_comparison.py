"""Comparing two evaluations: p-values against values worked out by hand and by enumeration."""

from itertools import product

import pytest

from services.evaluations.answers import Measured
from services.evaluations.comparison import Changed, compare, mcnemar, sign_flip


def answered(row: int, *statuses: str, rewards: tuple[float | None, ...] = ()) -> Measured:
    known = rewards or tuple(float(status == "correct") for status in statuses)
    return Measured(
        row=row,
        category=None,
        tokens=[1] * len(statuses),
        truncated=[False] * len(statuses),
        rewards=list(known),
        statuses=list(statuses),
    )


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 2**5),
        (5, 1, 2 * (1 + 6) / 2**6),
        (1, 5, 2 * (1 + 6) / 2**6),
        (3, 3, 1.0),
    ],
)
def test_mcnemars_exact_p_equals_the_hand_calculation(better: int, worse: int, p: float) -> None:
    differences = [1.0] * better + [-1.0] * worse + [0.0] * 10

    assert mcnemar(differences) == pytest.approx(p)


def test_mcnemars_p_is_a_number_for_thousands_of_rows() -> None:
    assert mcnemar([1.0] * 3000 + [-1.0] * 3000) == pytest.approx(1.0)
    assert 0 < mcnemar([1.0] * 700 + [-1.0] * 500) < 1e-7


def test_the_sign_flip_test_counts_all_assignments_of_signs() -> None:
    known = [0.5, 0.25, -0.125, 0.75, 0.0]
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, known, strict=True)))
        for signs in product((1, -1), repeat=5)
    ]
    seen = abs(sum(known))

    assert sign_flip(known) == pytest.approx(sum(one >= seen - 1e-12 for one in sums) / len(sums))
    assert sign_flip([0.0, 0.0]) == 1.0


def test_drawn_signs_agree_with_the_exact_test_where_all_differences_are_equal() -> None:
    differences = [1.0] * 40 + [-1.0] * 25

    assert sign_flip(differences) == pytest.approx(mcnemar(differences), abs=0.01)
    assert sign_flip(differences) == sign_flip(differences)


def test_rows_are_paired_by_number_and_those_that_changed_are_listed() -> None:
    these = [answered(0, "correct"), answered(1, "correct"), answered(2, "wrong"), answered(9)]
    others = [answered(2, "correct"), answered(1, "correct"), answered(0, "wrong")]
    found = compare(these, others)

    assert (found.metric, found.test, found.rows) == ("accuracy", "mcnemar", 3)
    assert (found.value, found.other, found.difference) == (2 / 3, 2 / 3, 0)
    assert found.changed == [Changed(0, 1.0, 0.0), Changed(2, 0.0, 1.0)]
    assert (found.better, found.worse, found.p) == (1, 1, 1.0)
    assert found.low <= found.difference <= found.high


def test_several_answers_a_row_compare_by_their_share_of_correct_ones() -> None:
    these = [answered(row, "correct", "correct") for row in range(8)]
    others = [answered(row, "correct", "wrong") for row in range(8)]
    found = compare(these, others)

    assert (found.test, found.difference) == ("sign_flip", 0.5)
    assert found.p == pytest.approx(2 / 2**8)


def test_a_row_without_answers_counts_as_wrong() -> None:
    assert compare([answered(0)], [answered(0, "correct")]).difference == -1


def test_ratings_compare_by_reward_without_rows_that_lack_a_reward() -> None:
    these = [answered(0, "scored", rewards=(0.7,)), answered(1, "error", rewards=(None,))]
    others = [answered(0, "scored", rewards=(0.2,)), answered(1, "scored", rewards=(0.5,))]
    found = compare(these, others)

    assert (found.metric, found.test, found.rows) == ("reward", "sign_flip", 1)
    assert found.difference == pytest.approx(0.5)


def test_evaluations_without_a_common_row_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no answered row in common"):
        compare([answered(0, "correct")], [answered(1, "correct")])
