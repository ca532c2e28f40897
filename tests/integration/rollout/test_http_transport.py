"""Connections of many requests in flight, with a small server that counts them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from rollout.http_transport import PerRequestTransport


@dataclass
class Server:
    """Answers `/soon` at once, anything else when `open` is set."""

    url: str = ""
    connections: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One for each waiting request."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not head.startswith(b"GET /soon"):
                    self.waiting.release()
                    await self.open.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    made.url = f"http://{host}:{port}"
    async with listening:
        yield made


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, transport=PerRequestTransport()) as client:
        yield client


async def in_flight(http: httpx.AsyncClient, server: Server) -> asyncio.Task[httpx.Response]:
    """Send a request that the server reads and does not answer."""
    request = asyncio.create_task(http.get("/late"))
    await server.waiting.acquire()
    return request


async def test_an_idle_connection_is_used_again(http: httpx.AsyncClient, server: Server) -> None:
    late = [await in_flight(http, server) for _ in range(3)]
    assert server.connections == 3
    # It does not queue after the waiting requests.
    assert (await http.get("/soon")).text == "ok"
    assert server.connections == 4

    server.open.set()

    assert [(await one).text for one in late] == ["ok"] * 3
    for _ in range(5):
        await asyncio.gather(*(http.get("/soon") for _ in range(4)))
    assert server.connections == 4


async def test_a_cancelled_request_harms_no_other(http: httpx.AsyncClient, server: Server) -> None:
    late = await in_flight(http, server)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    server.open.set()
    assert (await http.get("/soon")).text == "ok"
    assert server.connections == 2


async def test_closing_fails_requests_in_flight(http: httpx.AsyncClient, server: Server) -> None:
    late = await in_flight(http, server)
    await http.aclose()
    with pytest.raises(httpx.TransportError):
        await late


async def test_a_server_that_is_away_is_a_transport_error() -> None:
    async with httpx.AsyncClient(transport=PerRequestTransport()) as http:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await http.get("http://127.0.0.1:1/")
