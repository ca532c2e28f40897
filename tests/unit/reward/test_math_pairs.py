"""Every pair of the table, with the answer standing alone and in a box."""

import pytest

from tests.unit.reward.math_pairs import DIFFERENT, EQUAL
from tests.unit.reward.scoring import score

FORMS = ("{}", "Some thoughts first. \\boxed{{{}}}")


def cases(table: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str, str]]:
    return [
        (kind, form.format(answer), reference)
        for kind, pairs in table.items()
        for answer, reference in pairs
        for form in FORMS
    ]


def test_the_table_of_math_pairs_has_at_least_150() -> None:
    pairs = [pair for table in (EQUAL, DIFFERENT) for kind in table.values() for pair in kind]

    assert len(set(pairs)) == len(pairs) >= 150


@pytest.mark.parametrize(("kind", "completion", "reference"), cases(EQUAL))
def test_equal_pairs_are_correct(kind: str, completion: str, reference: str) -> None:
    verdict = score("math", completion, reference)

    assert (verdict.status, verdict.reward) == ("correct", 1.0), verdict.detail


@pytest.mark.parametrize(("kind", "completion", "reference"), cases(DIFFERENT))
def test_different_pairs_are_wrong(kind: str, completion: str, reference: str) -> None:
    verdict = score("math", completion, reference)

    assert (verdict.status, verdict.reward) == ("wrong", 0.0), verdict.detail
