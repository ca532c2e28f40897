"""A submission warns of a dataset whose rows all have the same answer."""

from typing import Any

import pytest

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.gateway.reference_checks import COLUMN
from services.gateway.submission.row_problems import same_answers
from services.gateway.submission.row_sample import DatasetOptions, RowSample

OPTIONS = DatasetOptions("{prompt}", None, 8, True)


def warnings(answers: list[Any], section: str = "data", rows: int = 0) -> list[str]:
    read = {i: Row(prompt="p", answer=answer) for i, answer in enumerate(answers)}
    record = DatasetRecord(id="1", name="sums", rows=rows or len(answers), created=0.0, segments=[])
    return same_answers({section: RowSample(record, OPTIONS, read)})


def test_rows_that_all_have_the_same_answer_are_named() -> None:
    assert warnings(["easy"] * 30) == [
        f'data.dataset: all 30 rows of sums have the same answer, "easy": {COLUMN}'
    ]
    (held_out,) = warnings([7] * 3, section="evaluation", rows=9)
    assert held_out.startswith(
        "evaluation.dataset: all 3 rows of sums that were looked at have the same answer, 7: "
    )


@pytest.mark.parametrize("answers", [[1, 1], [None] * 3, [""] * 3, [1, 1, 2]])
def test_answers_that_may_be_equal_are_not_named(answers: list[Any]) -> None:
    assert warnings(answers) == []
