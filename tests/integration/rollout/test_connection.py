"""Requests over a Unix socket, with a small server that counts connections."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from rollout.vllm.client.connection import LONGEST_LINE, Reply, VLLMConnection, VLLMUnavailable
from services.runtime.tasks import end

TOO_LONG = 3 * LONGEST_LINE
CHUNKS = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
ANSWERS = {
    b"/soon": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    b"/chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    b"/last": b"HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
    b"/part": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
    b"/noise": b"vLLM\r\n\r\n",
    b"/long": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % TOO_LONG + bytes(TOO_LONG),
    b"/twice": 2 * b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
}


@dataclass
class Server:
    """Answers from ANSWERS, or anything else when `open` is set."""

    connections: int = 0
    bodies: list[bytes] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One for each waiting request."""
    left: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One for each ended connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                self.bodies.append(await reader.readexactly(length))
                path = head.split()[1]
                if path not in ANSWERS:
                    self.waiting.release()
                    gone = asyncio.create_task(reader.read(1))
                    opened = asyncio.create_task(self.open.wait())
                    await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
                    await end([gone, opened])
                writer.write(ANSWERS.get(path, ANSWERS[b"/soon"]))
                if path in (b"/last", b"/part"):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.left.release()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server()
    async with await asyncio.start_unix_server(made.serve, tmp_path / "socket"):
        yield made
        made.open.set()


@pytest.fixture
async def vllm(server: Server, tmp_path: Path) -> AsyncIterator[VLLMConnection]:
    made = VLLMConnection(tmp_path / "socket")
    yield made
    await made.close()


async def in_flight(vllm: VLLMConnection, server: Server) -> "asyncio.Task[object]":
    """Send a request that the server reads and does not answer."""
    request = asyncio.create_task(vllm.send("GET", "/late"))
    await server.waiting.acquire()
    return request


async def test_answers_come_whole_and_connections_are_used_again(
    vllm: VLLMConnection, server: Server
) -> None:
    large = bytes(range(256)) * 4096
    assert (await vllm.send("POST", "/soon", content=large)).content == b"ok"
    assert (await vllm.send("POST", "/chunks", json={"a": 1})).content == b"abc"
    assert server.bodies == [large, b'{"a":1}']
    assert server.connections == 1

    found = await asyncio.gather(*(vllm.send("GET", "/soon") for _ in range(8)))
    again = await asyncio.gather(*(vllm.send("GET", "/soon") for _ in range(8)))

    assert [one.content for one in [*found, *again]] == [b"ok"] * 16
    assert server.connections <= 8


async def test_a_connection_that_the_server_closes_is_not_used_again(
    vllm: VLLMConnection, server: Server
) -> None:
    refused = await vllm.send("GET", "/last")
    assert refused == Reply(500, b"no")
    assert (await vllm.send("GET", "/soon")).content == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("path", ["/part", "/noise"])
async def test_a_broken_answer_makes_the_server_unavailable(
    vllm: VLLMConnection, server: Server, path: str
) -> None:
    with pytest.raises(VLLMUnavailable, match=path):
        await vllm.send("GET", path)
    assert (await vllm.send("GET", "/soon")).content == b"ok"


async def test_an_unrequested_answer_is_ignored(vllm: VLLMConnection, server: Server) -> None:
    assert (await vllm.send("GET", "/twice")).content == b"ok"
    assert (await vllm.send("GET", "/chunks")).content == b"abc"


async def test_the_server_sees_that_a_request_is_cancelled(
    vllm: VLLMConnection, server: Server
) -> None:
    late = await in_flight(vllm, server)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    async with asyncio.timeout(60):
        await server.left.acquire()
    assert (await vllm.send("GET", "/soon")).content == b"ok"
    assert server.connections == 2


async def test_an_answer_may_come_too_late(vllm: VLLMConnection, server: Server) -> None:
    with pytest.raises(VLLMUnavailable, match=r"for 0\.05 s"):
        await vllm.send("GET", "/late", timeout=0.05)
    assert (await vllm.send("GET", "/soon")).content == b"ok"


async def test_closing_fails_requests_in_flight_and_later_ones(
    vllm: VLLMConnection, server: Server
) -> None:
    late = await in_flight(vllm, server)
    await vllm.close()
    with pytest.raises(VLLMUnavailable):
        await late
    with pytest.raises(VLLMUnavailable, match="its connection is closed"):
        await vllm.send("GET", "/soon")


async def test_a_line_of_a_streamed_answer_has_a_longest_length(
    vllm: VLLMConnection, server: Server
) -> None:
    async def read() -> list[bytes]:
        async with vllm.stream("/long", b"") as lines:
            assert not isinstance(lines, Reply)
            return [line async for line in lines]

    with pytest.raises(VLLMUnavailable, match="/long"):
        await read()
    assert (await vllm.send("GET", "/soon")).content == b"ok"


async def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    vllm = VLLMConnection(tmp_path / "none")
    for _ in range(2):
        with pytest.raises(VLLMUnavailable):
            await vllm.send("GET", "/soon")
    await vllm.close()


def test_requests_share_a_connection_on_the_event_loop_of_a_worker(tmp_path: Path) -> None:
    async def ask() -> list[bytes]:
        server, vllm = Server(), VLLMConnection(tmp_path / "socket")
        async with await asyncio.start_unix_server(server.serve, tmp_path / "socket"):
            found = [(await vllm.send("GET", "/soon")).content for _ in range(2)]
            await vllm.close()
            await server.left.acquire()
        assert server.connections == 1
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == [b"ok", b"ok"]
