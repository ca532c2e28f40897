"""Clients that fall silent, trickle, or open many connections: they lose theirs, and nobody else
waits. Real sockets; most tests use a small server with short deadlines."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from services.http import BodyLimit, InFlight, Limit, install
from services.http.connections import ConnectionLimits, server_config, trust
from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.ports import own_ports

MIB = 1 << 20
SHORT = ConnectionLimits(header_seconds=1, body_seconds=3, body_bytes=100, unread_seconds=1)
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class App:
    """Reads a body and says how long it was. `/large` answers with 64 MiB."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (b"authorization", b"Bearer right") in scope["headers"]:
            trust(scope)
        read, more = 0, scope["method"] == "POST"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            read += len(message["body"])
            more = message["more_body"]
        body = bytes(64 * MIB) if scope["path"] == "/large" else str(read).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """All that the server still says, up to its end of the connection. The kernel resets a
        connection whose server had closed it before it read all: what came first counts."""
        answer = b""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(100):
                while part := await self.reader.read(1 << 16):
                    answer += part
        return answer

    @property
    def ended(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None


class Server:
    """A server in this process."""

    def __init__(self, port: int, connections: Sized = ()) -> None:
        self.port = port
        self.connections = connections
        self.clients: list[Client] = []

    async def connect(self, data: bytes = b"") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        if data:
            await client.send(data)
        return client

    async def works(self) -> bool:
        """Whether a new client is answered."""
        async with asyncio.timeout(100):
            client = await self.connect(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 OK" in await client.rest()


@asynccontextmanager
async def serving(limits: ConnectionLimits, app: ASGIApp) -> AsyncIterator[Server]:
    (port,) = own_ports("127.0.0.1", 1)
    server = uvicorn.Server(
        server_config(app, limits, port=port, lifespan="off", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    served = Server(port, server.server_state.connections)
    try:
        yield served
    finally:
        for client in served.clients:
            client.writer.transport.abort()
        server.should_exit = True
        await task


async def test_a_header_that_never_ends_ends_its_connection() -> None:
    async with serving(SHORT, App()) as server:
        silent = await server.connect()
        half = await server.connect(HEAD)
        began = time.monotonic()
        assert await server.works()
        for client in (silent, half):
            assert (await client.rest()).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began > 0.9


async def test_bytes_between_two_requests_do_not_hold_a_connection() -> None:
    async with serving(SHORT, App()) as server:
        client = await server.connect(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n0")
        with suppress(ConnectionError):
            for _ in range(40):
                await client.send(b"\r\n")
                await asyncio.sleep(0.1)
            pytest.fail("the connection is still there")


async def test_a_body_must_go_on_but_may_take_long() -> None:
    async with serving(SHORT, App()) as server:
        begun = HEAD + b"Content-Length: 1200\r\n\r\n"
        slow = await server.connect(begun)
        trickle = await server.connect(begun)
        silent = await server.connect(begun + b"x" * 50)
        chunked = await server.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1")
        late = [asyncio.create_task(client.rest()) for client in (trickle, silent, chunked)]
        # Longer than SHORT lets a body stand still, which a busy machine may do between two parts.
        for _ in range(12):
            await slow.send(b"x" * 100)
            for client, answer in ((trickle, late[0]), (chunked, late[2])):
                if not answer.done():
                    client.writer.write(b";")
            await asyncio.sleep(0.4)
        assert (await slow.reader.readuntil(b"1200")).startswith(b"HTTP/1.1 200")
        for answer in late:
            assert (await answer).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X: " + b"x" * MIB,
        HEAD + b"x: y\r\n" * 100_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 3 * MIB,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 500_000,
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
    ],
    ids=["header", "headers", "chunk extension", "trailers", "pipelined requests"],
)
async def test_nothing_without_end_is_kept_in_memory(sent: bytes) -> None:
    async with serving(ConnectionLimits(), App()) as server:
        client = await server.connect()
        with suppress(ConnectionError):
            await client.send(sent)
        assert b" 200 OK" not in await client.rest()
        assert await server.works()


async def test_a_client_that_takes_no_answer_loses_it() -> None:
    async with serving(SHORT, App()) as server:
        client = await server.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: not server.connections)
        assert len(await client.rest()) < 64 * MIB


async def test_one_client_has_few_connections_that_wait_without_a_key() -> None:
    limits = ConnectionLimits(a_client=10)
    async with serving(limits, App()) as server:
        known = [
            await server.connect(HEAD + b"Authorization: Bearer right\r\nContent-Length: 9\r\n\r\n")
            for _ in range(15)
        ]
        strange = [await server.connect(HEAD) for _ in range(30)]
        assert await server.works()
        await until(lambda: sum(client.ended for client in strange) >= 20)
        assert not any(client.ended for client in known)
        assert [client.ended for client in strange] == [True] * 20 + [False] * 10


async def test_where_all_connections_wait_the_newest_gets_in() -> None:
    async with serving(ConnectionLimits(connections=20), App()) as server:
        for _ in range(60):
            await server.connect(HEAD)
        assert await server.works()
        await until(lambda: sum(client.ended for client in server.clients[:60]) >= 41)


async def test_bodies_in_flight_are_bounded_and_small_ones_get_through() -> None:
    bodies = InFlight(4 * MIB)
    app = BodyLimit(App(), lambda scope: Limit(2 * MIB, "send less", bodies))
    async with serving(ConnectionLimits(), app) as server:
        whole = HEAD + b"Content-Length: 1900000\r\n\r\n" + bytes(1_900_000)
        clients = [await server.connect(whole[:-1]) for _ in range(2)]
        await until(lambda: bodies.bytes == 2 * 1_899_999)
        third = await server.connect(whole)
        answer = await third.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in answer.lower()
        small = await server.connect(HEAD + b"Content-Length: 9\r\n\r\n123456789")
        assert b" 200 OK" in await small.reader.readuntil(b"\r\n\r\n9")
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: bodies.bytes == 0)


async def test_an_answer_to_an_unexpected_error_says_that_its_connection_ends() -> None:
    """uvicorn ends it. A client that was not told sends its next request into the closed one."""
    app = FastAPI()
    install(app)

    @app.get("/")
    def broken() -> None:
        raise RuntimeError

    async with serving(ConnectionLimits(), app) as server:
        client = await server.connect(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"\r\nconnection: close\r\n" in answer


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Started with few open files, as a shell gives them."""
    folder = tmp_path_factory.mktemp("gateway")
    server = RedisServer(folder)
    server.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        process = GatewayProcess(folder / "data", server.url)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield process
    process.stop()
    server.stop()


async def test_hundreds_of_half_sent_requests_block_no_other_of_the_gateway(
    gateway: GatewayProcess,
) -> None:
    server = Server(int(gateway.url.rpartition(":")[2]))
    half = b"POST /v1/datasets HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    clients = [await server.connect(half) for _ in range(300)]
    async with httpx.AsyncClient(base_url=gateway.url, timeout=100) as api:
        assert (await api.get("/healthz")).status_code == 200
        most = ConnectionLimits().a_client
        await until(lambda: sum(not client.ended for client in clients) <= most)
        assert (await api.get("/healthz")).status_code == 200
    for client in clients:
        client.writer.transport.abort()
    assert '"event": "limits"' in gateway.said
    assert "too many connections of one client without a key" in gateway.said
