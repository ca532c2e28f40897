"""A submission warns of references that are probably from the wrong column."""

from typing import Any

import pytest

from services.contracts.config import parse_config
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.gateway.submission.answer_check import COLUMN, answer_warnings
from services.gateway.submission.row_sample import DatasetOptions, RowSample

OPTIONS = DatasetOptions("{prompt}", None, 8, True)
RL = {"model": {"path": "m"}, "data": {"dataset": "sums"}, "training": {"max_steps": 1}}
SFT = {**RL, "type": "sft", "data": {"dataset": "sums", "max_seq_len": 8}}


def warnings(
    answers: list[Any], verifier: str | None = "math", section: str = "data", rows: int = 0
) -> list[str]:
    raw = {**RL, "rewards": [{"verifier": verifier}]} if verifier else SFT
    read = {i: Row(prompt="p", answer=answer) for i, answer in enumerate(answers)}
    record = DatasetRecord(id="1", name="sums", rows=rows or len(answers), created=0.0, segments=[])
    return answer_warnings(parse_config(raw), {section: RowSample(record, OPTIONS, read)})


def words(count: int, sample: str) -> str:
    return (
        f"data.dataset: the references of {count} of {sample} are words without a number or a "
        f"formula, which verifier 'math' compares as text: {COLUMN}, or choose a verifier for text "
        "(exact)"
    )


def test_rows_that_all_have_the_same_answer_are_named() -> None:
    same = 'data.dataset: all 30 rows of sums have the same answer, "easy": ' + COLUMN

    assert warnings(["easy"] * 30) == [same, words(30, "30 rows of sums")]
    assert warnings(["easy"] * 30, "exact") == warnings(["easy"] * 30, None) == [same]
    (held_out,) = warnings([7] * 3, section="evaluation", rows=9)
    assert held_out.startswith(
        "evaluation.dataset: all 3 rows of sums that were looked at have the same answer, 7: "
    )


@pytest.mark.parametrize("answers", [[1, 1], [None] * 3, [""] * 3, [1, 1, 2]])
def test_answers_that_may_be_equal_are_not_named(answers: list[Any]) -> None:
    assert warnings(answers) == []


def test_words_that_math_scores_are_counted() -> None:
    levels = ["easy", ["hard", "very hard"], "12", "北京", "Level"]

    assert warnings(levels) == [words(4, "5 rows of sums")]
    assert warnings(levels, "exact") == []


@pytest.mark.parametrize(
    "answer",
    [
        "x",
        "Level 5",
        "2 apples",
        r"\text{even}",
        "x+ab",
        "pi",
        "twelve",
        "Forty-two",
        "sin x",
        "二十",
    ],
)
def test_values_and_formulas_are_no_words(answer: str) -> None:
    assert warnings([answer, answer, "1"]) == []
