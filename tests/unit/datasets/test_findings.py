"""An upload counts probable mistakes in its rows, and refuses text that would be misread."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.datasets import DatasetError
from tests.unit.datasets.uploads import as_lines, imported, rows_of

CHAT = '"[{""role"": ""user"", ""content"": ""x""}]"'


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ("a,1\na,2\n", "1 row has the prompt of an earlier row, and another answer"),
        ("a,\nb,2\nc, \n", "2 of 3 rows have an empty answer"),
        ("a,1\nb,1\nc,1\n", 'all rows have the same answer, "1"'),
        ("a,nan\nb,1\nc,None\n", "2 rows have the text of a missing value"),
        ("3+4?;7,7\n5+6?;11,11\nx,2\n", "the prompts of 2 of 3 rows end with their answers"),
        ("a,72.0\nb, -3.00\nc,x\n", "2 answers are whole numbers written as"),
        (f"{CHAT},2\n", "1 prompt is text that looks like a list of messages"),
    ],
)
def test_probable_mistakes_are_counted(tmp_path: Path, content: str, finding: str) -> None:
    result = imported(tmp_path, ("rows.csv", f"prompt,answer\n{content}".encode()))

    assert [warning for warning in result.warnings if finding in warning], result.warnings


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        (
            {"messages": [{"role": "critic", "content": "x"}], "answer": "1"},
            "1 chat has turns of 'critic', which many chat templates leave out",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "answer": "1", "system": "Be brief."},
            "nothing of column 'system': if the question needs it, delete the dataset and write it "
            "into the chats",
        ),
        ({"prompt": "x", "answer": 72.0}, "1 answer is a whole number written as 72.0"),
    ],
)
def test_probable_mistakes_of_chats_and_numbers_are_counted(
    tmp_path: Path, row: dict[str, Any], finding: str
) -> None:
    (warning,) = imported(tmp_path, ("rows.jsonl", as_lines(row))).warnings
    assert finding in warning


def test_ordinary_rows_have_no_findings(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "Repeat: 7", "answer": "7"},
        {"question": "What is 2+2?", "answer": 4, "level": None},
        {"question": "Is 12 even?", "answer": 2.5},
        {"question": "Half of 5?", "answer": "2.50"},
        {"question": "Half of 6?", "answer": "3.0"},
    ]
    result = imported(tmp_path, ("rows.jsonl", as_lines(*rows)))
    assert (result.warnings, result.notes, result.left_over) == ([], [], [])


@pytest.mark.parametrize(
    ("content", "prompts", "note"),
    [
        ("question;answer\n3+4?;7\n5+6?;11\n", ["3+4?", "5+6?"], "semicolons"),
        ("question\tanswer\n3+4?\t7\n", ["3+4?"], "tabs"),
        ("question|answer\n3+4?|7\n", ["3+4?"], "vertical bars"),
        ("question;answer\n1,5+1,5?;3,0\n", ["1,5+1,5?"], "semicolons"),
        ('"question";"answer"\n"a;\nb";7\n', ["a;\nb"], "semicolons"),
        ("a question, asked;question;answer\nx, y;z;1\n", ["z"], "semicolons"),
        ("\ufeffsep=;\r\nquestion;answer\r\n3+4?;7\r\n", ["3+4?"], "semicolons"),
        ("sep=\t\nquestion\tanswer\n3+4?\t7\n", ["3+4?"], "tabs"),
        ("question,answer\na;b,1\nc;d|e,2\n", ["a;b", "c;d|e"], None),
        ("question\na; b\nc; d\n", ["a; b", "c; d"], None),
        ('question\n"a, b"\n', ["a, b"], None),
        ('id, question, answer\n1, "a, b", 7\n', ["a, b"], None),
    ],
)
def test_the_delimiter_of_a_csv_is_found_and_said(
    tmp_path: Path, content: str, prompts: list[str], note: str | None
) -> None:
    result = imported(tmp_path, ("rows.csv", content.encode()))

    assert [row.prompt for row in rows_of(tmp_path, result)] == prompts
    assert result.notes == ([f"the cells are separated by {note}"] if note else [])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"question;answer\n3+4?\n5+6?;11\n", "line 2 has 1 cells, the header has 2 ('question', "),
        (b"sep=;\nquestion;answer\n3+4?\n", "line 3 has 1 cells"),
        (b"question,answer\ncaf\xe9?,1\n", "It would say, in cp1252: 'caf\xe9?,1'"),
        ("question\n\u4e09\u52a0\u56db?\n".encode("gbk"), "in gb18030: '\u4e09\u52a0\u56db?'"),
        ("question,answer\na,1\n".encode("utf-16-le"), "another encoding like UTF-16"),
        (b"question\na\n\0\0\0", "line 3 has a byte of zero"),
        (b"question,answer\ra,1\r", "its lines end with a carriage return alone"),
    ],
)
def test_text_that_would_be_misread_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        imported(tmp_path, ("rows.csv", content))
    assert problem in str(refused.value)


def test_text_in_a_binary_column_of_parquet_is_text(tmp_path: Path) -> None:
    """Many writers do not mark text as such. It became base64."""
    sink = io.BytesIO()
    table = {"prompt": [b"caf\xc3\xa9?"], "answer": [b"7"], "image": [b"\xff\xd8"]}
    pq.write_table(pa.table(table), sink)

    (row,) = rows_of(tmp_path, imported(tmp_path, ("rows.parquet", sink.getvalue())))
    assert (row.prompt, row.answer, row.columns) == ("caf\xe9?", "7", {"image": {"base64": "/9g="}})
