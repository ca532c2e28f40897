"""How the gateway sends files: ranges, clients that leave or do not read, a limit of bandwidth."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from services.http import Bandwidth, OpenFile, byte_range, limited
from services.http.connections import ConnectionLimits, server_config
from tests.ports import own_ports

MIB = 1 << 20
CONTENT = random.Random(0).randbytes(MIB) * 24
GET = b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def sending(
    path: Path, mbit: float | None = None, limits: ConnectionLimits | None = None
) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """A server of this file: its port, and itself."""
    bandwidth = Bandwidth(mbit)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await OpenFile(path.open("rb"), bandwidth)(scope, receive, send)

    (port,) = own_ports("127.0.0.1", 1)
    server = uvicorn.Server(
        server_config(app, limits, port=port, lifespan="off", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield port, server
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize(
    ("header", "status", "wanted"),
    [
        (None, 200, slice(None)),
        ("bytes=0-0", 206, slice(1)),
        (f"bytes=5-{20 * MIB}", 206, slice(5, 20 * MIB + 1)),
        (f"bytes={24 * MIB - 3}-", 206, slice(-3, None)),
        ("bytes=-7", 206, slice(-7, None)),
        (f"bytes=9-{99 * MIB}", 206, slice(9, None)),
        (f"bytes={24 * MIB}-", 416, slice(0)),
        # Several ranges get the whole file, as RFC 9110 allows.
        ("bytes=0-1,4-5", 200, slice(None)),
        ("bytes=5-2", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
    ],
)
async def test_a_file_is_sent_whole_or_in_a_range_and_the_connection_stays(
    path: Path, header: str | None, status: int, wanted: slice
) -> None:
    async with sending(path) as (port, server), httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/f"
        for _ in range(2):
            answer = await client.get(url, headers={"Range": header} if header else {})
            assert answer.status_code == status
            assert answer.content == CONTENT[wanted]
        assert (await client.head(url)).headers["content-length"] == str(len(CONTENT))
        assert server.server_state.total_requests == 3
        assert len(server.server_state.connections) == 1


async def test_a_range_of_a_file_that_has_changed_since_is_the_whole_new_file(path: Path) -> None:
    async with sending(path) as (port, _), httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/f"
        etag = (await client.head(url)).headers["etag"]
        conditional = {"Range": "bytes=0-3", "If-Range": etag}
        assert (await client.get(url, headers=conditional)).content == CONTENT[:4]
        path.write_bytes(b"another file")
        assert (await client.get(url, headers=conditional)).content == b"another file"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_client_that_leaves_or_stops_reading_holds_no_resources(path: Path) -> None:
    # More than the buffers of both sockets hold.
    path.write_bytes(CONTENT * 4)
    async with sending(path, limits=ConnectionLimits(unread_seconds=1)) as (port, server):
        before = open_files()
        for leaves in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            if leaves:
                writer.transport.abort()
            async with asyncio.timeout(100):
                while server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            writer.transport.abort()
            del reader, writer
        async with asyncio.timeout(100):
            while open_files() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_file_that_becomes_shorter_is_not_taken_for_a_whole_one(path: Path) -> None:
    async with (
        sending(path, mbit=80) as (port, _),
        httpx.AsyncClient() as client,
        client.stream("GET", f"http://127.0.0.1:{port}/f") as answer,
    ):
        os.truncate(path, 4 * MIB)
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.aread()


async def test_all_clients_together_get_the_bandwidth_that_was_set(path: Path) -> None:
    content = CONTENT[: 2 * MIB]
    path.write_bytes(content)
    async with sending(path, mbit=80) as (port, _), httpx.AsyncClient() as client:
        began = time.monotonic()
        answers = await asyncio.gather(*(client.get(f"http://127.0.0.1:{port}/f") for _ in "ab"))
        seconds = time.monotonic() - began
    assert [answer.content for answer in answers] == [content] * 2
    # 4 MiB at 10 MB/s take 0.42 s; the last slice is not waited for.
    assert seconds > 0.35


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("bytes=2-4", (2, 5)),
        ("bytes= 2-4 ", (2, 5)),
        ("bytes=8-99", (8, 10)),
        ("bytes=-0", (10, 10)),
        ("bytes=10-", (10, 10)),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=1-2,3-4", None),
        ("bytes=" + "9" * 30 + "-", None),
        ("", None),
    ],
)
def test_a_range_header_is_read_as_the_standard_says(
    header: str, wanted: tuple[int, int] | None
) -> None:
    assert byte_range(header, 10) == wanted


async def test_an_archive_that_is_made_while_it_is_sent_keeps_to_the_bandwidth() -> None:
    bandwidth, pieces = Bandwidth(80), [CONTENT[:MIB], b"", b"end"]
    began = time.monotonic()

    sent = [piece async for piece in limited(iter(pieces), bandwidth)]

    # 1 MiB at 10 MB/s takes 0.1 s; the last slice is not waited for.
    assert time.monotonic() - began >= 0.09
    assert b"".join(sent) == b"".join(pieces)
    assert max(map(len, sent)) == bandwidth.slice == 500_000
