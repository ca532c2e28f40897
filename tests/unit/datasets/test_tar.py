"""A tar of JSON files is read as a stream: rows with their paths, and nothing that takes memory."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import DatasetError, DatasetReader, SourceFile, import_files
from services.datasets.known_files import KNOWN_FILES
from services.datasets.row_checks import MAX_ROW_BYTES
from services.volume import Volume

PROBLEM = {
    "problem": "1+1?",
    "solution": "It is $\\boxed{2}$.",
    "level": "Level 1",
    "type": "Algebra",
}


def packed(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(link)
    return sink.getvalue()


def rows_of(root: Path, content: bytes, filename: str) -> list[Row]:
    mapping = KNOWN_FILES["math"]
    result = import_files(
        root, [SourceFile(io.BytesIO(content), filename)], "math", mapping=mapping
    )
    record = DatasetRecord(
        id=result.id, name="math", rows=result.segment.rows, created=0, segments=[result.segment]
    )
    return DatasetReader(Volume(root), record).rows(range(result.segment.rows))


@pytest.mark.parametrize("filename", ["MATH.tar", "MATH.tar.gz", "MATH.tgz"])
def test_each_json_file_and_each_line_is_a_row_with_its_path(tmp_path: Path, filename: str) -> None:
    text = json.dumps(PROBLEM, indent=2).encode()
    line = json.dumps(PROBLEM | {"problem": "2?"}).encode()
    files = {
        "MATH/train/algebra/1.json": text,
        "MATH/train/algebra/._1.json": b"not JSON",
        "MATH/README": b"Hello",
        "MATH/more.jsonl": line + b"\n\n" + line + b"\n",
    }
    content = packed(files)
    found = rows_of(
        tmp_path, content if filename == "MATH.tar" else gzip.compress(content), filename
    )
    assert [(row.prompt, row.columns["path"]) for row in found] == [
        ("1+1?", "MATH/train/algebra/1.json"),
        ("2?", "MATH/more.jsonl"),
        ("2?", "MATH/more.jsonl"),
    ]
    assert found[0].columns["level"] == "Level 1"


def endless(name: str) -> bytes:
    """A member that says it is a terabyte long."""
    member = tarfile.TarInfo(name)
    member.size = 1 << 40
    return member.tobuf() + b" " * (MAX_ROW_BYTES + 10_000)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed({"a.json": b"{"}), "a.json is not JSON"),
        (packed({"a.json": b"[1]"}), "a.json is not an object"),
        (
            packed({"a.jsonl": json.dumps(PROBLEM).encode() + b"\n3"}),
            "a.jsonl, line 2, is not an object",
        ),
        (packed({"a.txt": b"x"}), "has no rows"),
        (packed({"a.json": json.dumps(PROBLEM).encode()})[:600], "not a whole tar"),
        (b"no tar at all" * 100, "not a whole tar"),
        (endless("a.json"), "a.json takes more than 16 MiB"),
        (endless("a.jsonl"), "a.jsonl, line 1, takes more than 16 MiB"),
    ],
)
def test_a_tar_that_cannot_be_used_is_refused_and_leaves_nothing(
    tmp_path: Path, content: bytes, said: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        rows_of(tmp_path, content, "MATH.tar")
    assert said in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
