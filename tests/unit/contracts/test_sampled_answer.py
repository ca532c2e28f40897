"""Answers as text: what is kept of them."""

from typing import Any

import pytest

from services.contracts.groups.sampled_answer import cut, extremes, reference_text


def test_a_long_text_loses_its_middle() -> None:
    assert cut("abcdefghij", 10) == "abcdefghij"
    assert cut("abcdefghijk", 4) == "ab\n[… 7 characters dropped …]\njk"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, ""),
        ("#### 5", "#### 5"),
        (5, "5"),
        (["é", 1], '["é", 1]'),
        ({"a": None}, '{"a": null}'),
    ],
)
def test_a_reference_is_shown_as_text(answer: Any, text: str) -> None:
    assert reference_text(answer) == text


def test_a_long_reference_loses_its_middle() -> None:
    assert len(reference_text("x" * 5000)) < 1100


def test_the_best_and_the_worst_of_a_group_are_shown() -> None:
    assert extremes([0.5, 1.0, None, 0.0]) == [1, 3]
    assert len(extremes([1.0, 1.0])) == 1
    assert extremes([None, None]) == []
