"""One bad row of an upload stops only itself: all are counted, and may be left out."""

import asyncio
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from services.datasets import ColumnMapping, DatasetError, SourceFile, import_in_child
from services.datasets.upload import import_files

GOOD = b'{"prompt": "1+1", "answer": "2"}\n'
LINES = [
    *(b'{"prompt": "1+1", "answer": \n', GOOD, b"[1]\n", GOOD, b'{"prompt": "", "answer": "2"}\n'),
    *(b'{"answer": "2"}\n', b'{"prompt": [{"content": "x"}], "answer": "2"}\n', b"{\n", GOOD),
]
NAMED = (
    r"line 1 is not JSON: .*; line 3 is a list, .*; line 5: the prompt is empty: .*; line 6 .*; "
    r"line 7: .*"
)


def files(content: bytes, name: str = "rows.jsonl") -> list[SourceFile]:
    return [SourceFile(io.BytesIO(content), name)]


def imported(root: Path, content: bytes, name: str = "rows.jsonl", **options: Any) -> Any:
    return import_files(root, files(content, name), "rows", **options)


def test_a_refusal_counts_all_bad_rows_and_names_the_first_and_the_way_out(tmp_path: Path) -> None:
    many = LINES * 1000
    message = rf"^6,000 rows cannot be used: {NAMED}; and 5,995 more. Mend them, or .*bad_rows=skip"
    with pytest.raises(DatasetError, match=message) as refused:
        imported(tmp_path, b"".join(many))

    assert len(str(refused.value)) < 2000
    with pytest.raises(DatasetError, match=r"^line 2 is a list, .*\. Mend this row, or leave"):
        imported(tmp_path, GOOD + b"[1]\n")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("way", ["here", "in a child"])
def test_skipped_rows_are_counted_and_the_others_stay(tmp_path: Path, way: str) -> None:
    if way == "here":
        done = imported(tmp_path, b"".join(LINES), skips_bad_rows=True)
    else:
        with (tmp_path / "rows.jsonl.gz").open("w+b") as packed:
            packed.write(gzip.compress(b"".join(LINES)))
            packed.flush()
            source = [SourceFile(packed, "rows.jsonl.gz")]
            columns, quota = ColumnMapping(), 1 << 20
            work = import_in_child(
                tmp_path, source, "rows", None, columns, quota, skips_bad_rows=True
            )
            done = asyncio.run(work)

    assert (done.segment.rows, done.rows, done.left_out) == (3, 3, 6)
    assert done.warnings[0].startswith("6 bad rows were left out: line 1 is not JSON")
    assert done.warnings[0].endswith("; and 1 more")


def test_rows_of_csv_with_other_cells_and_of_a_known_file_are_skipped_too(tmp_path: Path) -> None:
    table = b"prompt,answer\n1+1,2\n1+2\n1+3,4\n"
    done = imported(tmp_path, table, "rows.csv", skips_bad_rows=True)
    assert (done.rows, done.left_out) == (2, 1)
    assert done.warnings[0].startswith("1 bad row was left out: line 3 has 1 cells")


def test_an_upload_of_bad_rows_alone_is_refused_with_their_names(tmp_path: Path) -> None:
    empty = b'{"prompt": "", "answer": "2"}'
    for content, place in ((b"[[1], 2]", "element 2"), (b"{\n{\n", "line 2"), (empty, "line 1")):
        with pytest.raises(DatasetError, match=rf"{place}.*Mend"):
            imported(tmp_path, content, skips_bad_rows=True)
