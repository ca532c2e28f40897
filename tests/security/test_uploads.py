"""A hostile file is refused in time that is linear in its size, and within bounded memory."""

import io
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.datasets import DatasetError, SourceFile, import_files
from services.datasets.row_checks import MAX_ROW_BYTES

MIB = 1 << 20
Refusal = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """Why a file is refused; it leaves nothing on the data volume."""

    def run(content: bytes, filename: str) -> str:
        with pytest.raises(DatasetError) as refused:
            import_files(tmp_path, [SourceFile(io.BytesIO(content), filename)], "hostile")
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert len(str(refused.value)) < 2000
        return str(refused.value)

    return run


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def repeated(text: str, times: int) -> Any:
    indices = pa.array([0]).take(pa.array([0] * times, pa.int32()))
    return pa.DictionaryArray.from_arrays(indices.cast(pa.int32()), pa.array([text]))


def test_a_small_parquet_file_of_one_long_repeated_value_is_refused(refusal: Refusal) -> None:
    content = parquet({"prompt": repeated("a" * MIB, 1400)}, compression="zstd")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert len(content) < 10_000
    assert "its rows take more than 64 MiB" in refusal(content, "bomb.parquet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_a_parquet_row_whose_list_expands_to_gigabytes_is_refused(refusal: Refusal) -> None:
    values = pa.array([7], pa.int64()).take(pa.array([0] * 9 * MIB, pa.int32()))
    lists = pa.LargeListArray.from_arrays([0, len(values)], values)
    content = parquet({"prompt": ["a"], "more": lists}, compression="zstd")

    assert len(content) < 100_000
    assert "16 MiB" in refusal(content, "bomb.parquet")


@pytest.mark.parametrize("columns", [40_000, 100_000])
def test_a_csv_of_very_many_columns_is_refused_at_once(refusal: Refusal, columns: int) -> None:
    header = ",".join(f"c{number}" for number in range(columns))
    began = time.process_time()

    said = refusal(f"{header}\n{header}\n".encode(), "wide.csv")

    assert f"{columns} columns" in said
    assert time.process_time() - began < 5


def test_rows_of_very_many_columns_are_refused_in_every_format(refusal: Refusal) -> None:
    names = [f"c{number}" for number in range(5000)]
    line = "{" + ",".join(f'"{name}":1' for name in names) + "}"

    assert "5000 columns" in refusal(line.encode(), "wide.jsonl")
    assert "5000 columns" in refusal(parquet({name: [1] for name in names}), "wide.parquet")


@pytest.mark.parametrize(
    ("content", "filename"),
    [
        (b'{"prompt": "' + b"a" * MAX_ROW_BYTES + b'"}', "long.jsonl"),
        (b"prompt\n" + b"a" * (MAX_ROW_BYTES + 1), "long.csv"),
        (b'prompt\n"' + (b"a" * 1023 + b"\n") * (MAX_ROW_BYTES // 1024 + 1), "quoted.csv"),
    ],
)
def test_a_row_that_is_too_long_is_refused(refusal: Refusal, content: bytes, filename: str) -> None:
    assert "the most that one row may" in refusal(content, filename)


@pytest.mark.parametrize("depth", [300, 5000, 1_000_000])
def test_json_that_is_nested_too_deeply_is_refused(refusal: Refusal, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth

    said = refusal(b'{"prompt": "a", "answer": ' + nested + b"}", "deep.jsonl")

    assert "nested more than 200 levels" in said


def test_parquet_that_is_nested_too_deeply_is_refused(refusal: Refusal) -> None:
    value: Any = 1
    for _ in range(300):
        value = {"x": value}

    assert refusal(parquet({"prompt": ["a"], "answer": [value]}), "deep.parquet")


@pytest.mark.parametrize("value", [b"9" * 5000, b"1e999", b"NaN", b'"\\ud800"'])
def test_values_that_json_cannot_carry_are_refused(refusal: Refusal, value: bytes) -> None:
    assert "line 1" in refusal(b'{"prompt": "a", "answer": ' + value + b"}", "values.jsonl")
