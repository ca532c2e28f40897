"""A host that answers wrong, too much, too slowly or without end costs a download the requests that
are in flight to it. Real HTTP on loopback; the hosts are scripted."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.contracts.weights import WeightFile
from services.volume import download
from services.volume.sources import PER_SOURCE
from tests.integration.rollout.files.hosts import (
    CONTENT,
    KEY,
    PARTS,
    PEER_KEY,
    Host,
    partial_content,
    scripted,
    volume,
)


async def answer_wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    head = partial_content(first, last)
    writer.write(head + bytes(length))


async def answer_endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 206 OK\r\ntransfer-encoding: chunked\r\n"
                 b"content-range: bytes 0-4194303/9999999999\r\n\r\n")  # fmt: skip
    while True:
        writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        await writer.drain()


async def answer_too_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    writer.write(partial_content(first, last).replace(b"%d" % length, b"%d" % 10**12))
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


async def answer_drop_by_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, _ = await asked(reader)
    writer.write(partial_content(first, last))
    while True:
        writer.write(b"\0")
        await writer.drain()
        await asyncio.sleep(0.02)


async def answer_header_drop_by_drop(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 206 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)


async def answer_redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://[::1]:1/\r\ncontent-length: 0\r\n\r\n")


async def answer_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    first, last, length = await asked(reader)
    writer.write(partial_content(first, last) + CONTENT[first : first + length // 2])
    await writer.drain()
    writer.close()


async def answer_other_file(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


async def answer_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asked(reader)
    writer.write(b"\x16\x03\x01" * 1000 + b"\r\n\r\n")
    writer.close()


async def asked(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """Return (first, last, length) of the requested range."""
    header = await reader.readuntil(b"\r\n\r\n")
    assert PEER_KEY.encode() in header
    assert KEY.encode() + b"\r" not in header
    _, _, said = header.partition(b"Range: bytes=")
    first, last = said.split(b"\r\n")[0].split(b"-")
    return int(first), int(last), int(last) + 1 - int(first)


HOSTILE = [
    answer_wrong,
    answer_endless,
    answer_too_much,
    answer_drop_by_drop,
    answer_header_drop_by_drop,
    answer_redirect,
    answer_half,
    answer_other_file,
    answer_no_http,
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: answer.__name__)
async def test_a_hostile_host_costs_its_requests_in_flight_and_is_avoided(
    gateway: Host,
    file: WeightFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    monkeypatch.setattr(download, "LEAST_SECONDS", 0.3)
    monkeypatch.setattr(download, "LEAST_RATE", 1e9)
    requests = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await answer(reader, writer)

    async with scripted(counted) as hostile:
        here = volume(tmp_path / "here", gateway.url, "", hostile)
        path = await here.fetch(file)
        assert path.read_bytes() == CONTENT
        # All parts may be in flight when the first answer is noticed.
        assert 0 < requests <= min(PER_SOURCE, PARTS)
        first = requests
        # The last part is all zeros, as one wrong answer is.
        assert len(gateway.asked) >= PARTS - 1
        path.unlink()
        await here.fetch(file)
        assert requests == first
