"""A hostile file is refused in time that is linear in its size, and within bounded memory."""

import asyncio
import gzip
import io
import os
import resource
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.datasets import (
    ColumnMapping,
    DatasetError,
    Imported,
    SourceFile,
    import_in_child,
    import_process,
)
from services.datasets.row_checks import MAX_ROW_BYTES
from tests.integration.gateway.servers import GatewayProcess
from tests.integration.launch.conditions import eventually
from tests.security.fuzz_target import multipart

MIB = 1 << 20
QUOTA = 1 << 30
Refusal = Callable[..., str]


def converted_apart(root: Path, content: bytes, filename: str) -> Imported:
    """Convert an upload as the gateway does."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        files = [SourceFile(file, filename)]
        return asyncio.run(import_in_child(root, files, "hostile", None, ColumnMapping(), QUOTA))


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """Why a file is refused; it leaves nothing on the data volume."""

    def run(content: bytes, filename: str) -> str:
        with pytest.raises(DatasetError) as refused:
            converted_apart(tmp_path, content, filename)
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

    assert len(content) < 10_000
    assert "its rows take more than 64 MiB" in refusal(content, "bomb.parquet")


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


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A tar whose extended header has `records`."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, len(records)
    padding = b"\0" * (-len(records) % 512)
    member = tarfile.TarInfo("a.txt")
    return header.tobuf(tarfile.USTAR_FORMAT) + records + padding + member.tobuf() + b"\0" * 1024


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("records", [b"9" * MIB, b"1 a=" * (MIB // 4)], ids=["digits", "records"])
def test_a_long_header_of_a_tar_is_refused_before_it_is_read(
    refusal: Refusal, records: bytes, packed: bool
) -> None:
    """Python reads it in quadratic time: a megabyte of digits never ended."""
    content = pax(records)
    reason = refusal(gzip.compress(content) if packed else content, "hostile.tar")

    assert "the headers in the tar have 1,048,576 bytes, and 2,048 is the most" in reason


def test_many_headers_of_digits_are_read_in_seconds(refusal: Refusal) -> None:
    """Four megabytes took 20 s with headers of 8 KiB."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    member = pax(b"9" * 2048)[:-1024]
    assert "has no rows" in refusal(member * (4 * MIB // len(member)), "hostile.tar")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert ended.ru_utime - began.ru_utime < 12


def test_global_headers_of_a_tar_are_bounded_together(refusal: Refusal) -> None:
    """Each member takes the values of all of them: 1.7 MiB took 11 s."""
    member = pax(b"9 ab=123\n" * 7, kind=tarfile.XGLTYPE)[:-1024]

    assert "have 2,079 bytes, and 2,048 is the most" in refusal(member * 100, "hostile.tar")
    assert "has no rows" in refusal(member * 30, "global.tar")


@pytest.mark.parametrize("in_pax", [False, True])
def test_a_tar_that_names_a_file_of_many_gigabytes_is_refused_at_once(
    refusal: Refusal, in_pax: bool
) -> None:
    """Python looks for the end of such a file: a kilobyte took the minute of a conversion."""
    member = tarfile.TarInfo("a.txt")
    member.size = 1 << 60
    if in_pax:
        member.size, member.pax_headers = 1, {"size": "9" * 400}
    content = member.tobuf(tarfile.PAX_FORMAT if in_pax else tarfile.GNU_FORMAT)
    began = time.monotonic()

    assert "a.txt in the tar is larger than 16 GiB" in refusal(content, "hostile.tar")
    assert time.monotonic() - began < 20


def test_a_tar_with_a_damaged_header_is_named_as_such(refusal: Refusal) -> None:
    """The list of a sparse file's parts ends in the middle of a header of Python's own reader."""
    member = tarfile.TarInfo("a.json")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))

    assert refusal(bytes(header), "hostile.tar") == "not a whole tar: index out of range"


def test_blank_lines_in_gzip_cost_the_gateway_nothing(refusal: Refusal) -> None:
    """Four kilobytes cost its own process 8 s."""
    content = gzip.compress(b"\n" * MIB)
    began = time.process_time()

    assert len(content) < 8192
    assert "has no rows" in refusal(content, "blank.jsonl.gz")
    assert time.process_time() - began < 1


def test_a_packed_tar_is_unpacked_within_the_quota_and_not_onto_the_disk(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a hundred times its size in the folder for temporary files."""
    apart = tmp_path / "temporary"
    apart.mkdir()
    monkeypatch.setenv("TMPDIR", str(apart))
    member = tarfile.TarInfo("a.txt")
    member.size = 70 * MIB
    content = gzip.compress(member.tobuf() + b"\0" * member.size)

    assert "unpacks to more than 64 MiB" in refusal(content, "hostile.tar.gz")
    assert list(apart.iterdir()) == []


def test_a_conversion_has_a_minute_of_cpu_time(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_process, "CPU_SECONDS", 1)
    content = gzip.compress(b"\n" * (60 * MIB))

    assert "in 1 s of CPU time: upload fewer rows" in refusal(content, "slow.jsonl.gz")


async def test_a_conversion_ends_with_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = asyncio.Event(), asyncio.create_subprocess_exec

    async def starting(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        child = await start(*arguments, **options)
        started.set()
        return child

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    content = gzip.compress(b"\n" * (60 * MIB))
    others = _children(os.getpid())
    with tempfile.TemporaryFile() as file:
        file.write(content)
        files = [SourceFile(file, "slow.jsonl.gz")]
        work = asyncio.create_task(
            import_in_child(tmp_path, files, "slow", None, ColumnMapping(), QUOTA)
        )
        await started.wait()
        children = _children(os.getpid()) - others
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    assert children
    assert not children & _children(os.getpid())
    assert list(tmp_path.glob("datasets/*")) == []


def test_a_conversion_ends_when_its_client_hangs_up(gateway: GatewayProcess) -> None:
    kind, body = multipart({"name": b"slow"}, gzip.compress(b"\n" * (60 * MIB)), b"a.jsonl.gz")
    address = urlsplit(gateway.url)
    head = (
        f"POST /v1/datasets HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: {gateway.headers['Authorization']}\r\n"
        f"Content-Type: {kind.decode()}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    others = _children(gateway.pid)
    with socket.create_connection((str(address.hostname), address.port or 0)) as client:
        client.sendall(head.encode() + body)
        eventually(lambda: _children(gateway.pid) - others, what="no conversion began")
        (child,) = _children(gateway.pid) - others
    began = time.monotonic()
    eventually(lambda: child not in _children(gateway.pid), what="the conversion goes on")

    # The whole conversion takes 26 s of CPU time.
    assert time.monotonic() - began < 10
    assert list((gateway.data / "datasets").glob("*")) == []
    with gateway.client() as api:
        assert api.get("/v1/datasets").json()["datasets"] == []


def _children(pid: int) -> set[str]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {child for thread in threads for child in (thread / "children").read_text().split()}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_file_is_read_in_a_process_of_its_own_as_in_this_one(tmp_path: Path, suffix: str) -> None:
    text = b"question;input;answer\n" + b"a;b;1\n" * 60_000
    table = {"question": ["a"], "input": ["b"], "answer": [1]}
    found = converted_apart(tmp_path, text if suffix == "csv" else parquet(table), f"rows.{suffix}")

    assert (found.mapping, found.left_over) == (ColumnMapping("question", "answer"), ["input"])
    assert found.segment.rows == (60_000 if suffix == "csv" else 1)
    assert "--prompt question --prompt input" in found.warnings[0]
    assert found.duplicates == found.segment.rows - 1
