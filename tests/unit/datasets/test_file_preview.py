"""The beginning of a file, with a mapping, before anything is stored."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.contracts.file_preview import FilePreview, MappedRow
from services.datasets import ColumnMapping, SourceFile, preview_in_child
from services.datasets.file_preview import WHOLE_FILE, preview_file

CSV = b"task:result:level\n1 + 1:2:easy\n2 + 2:4:easy\n3 + 3:6:ea"


def preview(
    name: str, content: bytes, mapping: ColumnMapping | None = None, is_head: bool = False
) -> FilePreview:
    return preview_file(
        SourceFile(io.BytesIO(content), name), None, mapping or ColumnMapping(), 3, is_head
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.json", b'[{"task": "1 + 1", "result": "2", "level": "easy"},\n {"task": "2 '),
        ("a.jsonl", b'{"task": "1 + 1", "result": "2", "level": "easy"}\n{"task": "2 '),
    ],
)
def test_a_head_shows_whole_rows_and_what_the_mapping_makes_of_them(
    name: str, content: bytes
) -> None:
    shown = preview(name, content, ColumnMapping("task", "result"), is_head=True)

    assert shown.problem is None
    assert shown.columns == ["task", "result", "level"]
    assert shown.source[0] == {"task": "1 + 1", "result": "2", "level": "easy"}
    assert shown.rows[0] == MappedRow(prompt="1 + 1", answer="2", columns={"level": "easy"})
    assert len(shown.source) == len(shown.rows) == (2 if name.startswith("a.csv") else 1)
    assert (shown.prompt, shown.answer) == (["task"], ["result"])
    colons = ["the cells are separated by colons"] if "csv" in name else []
    assert shown.notes == colons


def test_a_mapping_that_cannot_be_used_is_a_problem_beside_the_columns() -> None:
    shown = preview("a.csv", CSV)
    assert shown.columns == ["task", "result", "level"]
    assert shown.rows == []
    assert str(shown.problem).startswith("no column looks like the prompt")
    assert str(preview("a.xyz", b"hello").problem).startswith("cannot tell the format of 'a.xyz'")


def test_a_long_value_loses_its_middle() -> None:
    shown = preview("a.jsonl", b'{"prompt": "%b", "x": [%b]}' % (b"p" * 9000, b"1," * 2999 + b"1"))
    assert len(str(shown.rows[0].prompt)) < 2100
    assert shown.source[0]["x"].startswith("[1,1,")


async def test_parquet_is_read_whole_in_a_child_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"question": ["1+1", "2+2"], "answer": [2, 4]}), path)
    content = path.read_bytes()
    with path.open("rb") as file:
        source = SourceFile(file, path.name)
        shown = await preview_in_child(source, None, ColumnMapping(), 1, False)

    assert (shown.format, shown.columns) == ("parquet", ["question", "answer"])
    assert shown.rows == [MappedRow(prompt="1+1", answer=2, columns={})]
    for name, head in (("a.parquet", content[:100]), ("a.csv.gz", gzip.compress(CSV)[:-2])):
        assert preview(name, head, is_head=True).problem == WHOLE_FILE
