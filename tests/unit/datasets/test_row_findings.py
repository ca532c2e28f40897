"""Lengths and repetitions of the rows of a stored dataset."""

from pathlib import Path
from typing import Any

import pytest

from services.contracts.dataset_findings import LengthBucket, RepeatedRow, Repetitions
from services.contracts.rows.dataset import Row
from services.datasets import DatasetError, append_rows, row_findings
from services.datasets.row_findings import count_rows

PARTS = [{"type": "text", "text": "b" * 20}]
CHAT: list[dict[str, Any]] = [{"role": "user", "content": "aé"}, {"role": "user", "content": PARTS}]
ROWS = [
    Row(prompt="two\nlines", answer="1"),
    Row(prompt="b", answer=None),
    Row(prompt="two\nlines", answer="2"),
    Row(prompt="b", answer=None),
    Row(prompt="two\nlines", answer="2"),
    Row(prompt=CHAT, answer={"x": 1}),
]


@pytest.mark.parametrize("small", [row_findings.SMALL_BYTES, 0], ids=["here", "in a child"])
def test_lengths_and_repetitions_are_counted_over_all_segments(
    tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_findings, "SMALL_BYTES", small)
    parts = [append_rows(tmp_path, "d", rows) for rows in (ROWS[:3], ROWS[3:])]

    found = count_rows([tmp_path / part.file for part in parts])

    prompts, answers = found.prompts, found.answers
    assert answers is not None
    chat = 22
    assert (prompts.rows, prompts.min, prompts.median, prompts.max) == (6, 1, 9, chat)
    assert (prompts.longest_row, prompts.mean) == (5, round((9 * 3 + 2 + chat) / 6, 1))
    assert (answers.rows, answers.min, answers.max) == (4, 1, len('{"x":1}'))
    assert [bucket for bucket in prompts.buckets if bucket.rows] == [
        LengthBucket(start=1, end=1, rows=2),
        LengthBucket(start=8, end=15, rows=3),
        LengthBucket(start=16, end=31, rows=1),
    ]
    assert found.duplicates == Repetitions(
        rows=2, examples=[RepeatedRow(row=3, first=1), RepeatedRow(row=4, first=2)]
    )
    assert found.other_answers == Repetitions(rows=1, examples=[RepeatedRow(row=2, first=0)])


def test_a_damaged_segment_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_findings, "SMALL_BYTES", 0)
    path = tmp_path / "segment.arrow"
    path.write_bytes(b"ARROW1 and nothing more")

    with pytest.raises(DatasetError, match=r"segment\.arrow is damaged"):
        count_rows([path])
