"""Reading a judge's reply, and writing its question."""

import pytest
from pydantic import ValidationError

from reward.verifiers.base import Item
from reward.verifiers.remote.judge import JudgeParams, question, read_score


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 7", 7.0),
        ("Good.\n**Score:** 7.5", 7.5),
        ("score: **8**/10", 8.0),
        ("Score: [[9]]", 9.0),
        ("Score: 2. On second thought, Score: 3", 3.0),
        ("Score: 10", 10.0),
        ("Score: 11", None),
        ("Score: -1", None),
        ("Score: high", None),
        ("7", None),
        ("", None),
        ("Score: " + "9" * 5000, None),
    ],
)
def test_the_number_after_the_last_marker_counts_if_it_is_on_the_scale(
    reply: str, score: float | None
) -> None:
    assert read_score(reply, JudgeParams()) == score


def test_the_judges_marker_can_be_set() -> None:
    assert read_score("Note: 3", JudgeParams(marker="note", maximum=6)) == 3.0


def test_a_template_that_does_not_show_the_answer_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"has no \{completion\}: the judge would not see"):
        JudgeParams(template="How good is {answer}?")


def test_the_default_template_names_everything() -> None:
    item = Item("judge", [{"role": "user", "content": "Why?"}], "{prompt}", None, {})

    text = question(item, JudgeParams(maximum=5))

    assert "user: Why?" in text
    assert "(none)" in text
    assert "[Answer to grade]\n{prompt}" in text
    assert "from\n0 (useless) to 5 (perfect)" in text
