"""Hosts that serve files as workers do, and the file that tests fetch from them."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from rollout.file_server import FileServer, serve
from services.contracts.weights import SMALLEST_PART
from services.http import Bandwidth
from services.runtime.api_key import key_for_peers
from services.runtime.tasks import end
from services.volume import Peers, Volume

PARTS = 6
CONTENT = random.Random(0).randbytes(SMALLEST_PART) * (PARTS - 1) + bytes(1000)
NAME = "runs/r/weights/v000001-ab.safetensors"
KEY = "hr-test"
PEER_KEY = key_for_peers(KEY) or ""


class Host:
    """A host with its own folder, which serves files as a worker does."""

    def __init__(self, root: Path, key: str = PEER_KEY) -> None:
        self.root = root
        self.key = key
        self.asked: list[str] = []
        """Range headers of the requests that were answered with a file."""
        self.url = ""
        self._files = FileServer(root, Bandwidth(None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message):
            if message["type"] == "http.response.start" and message["status"] < 400:
                self.asked.append(Headers(scope=scope).get("range", ""))
            await send(message)

        await self._files(scope, receive, noted)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Host"]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*listener.getsockname())
        serving = asyncio.create_task(serve(self, self.key, listener))
        try:
            yield self
        finally:
            await end([serving])
            listener.close()


def volume(root: Path, gateway: str, own: str = "", *hosts: str) -> Volume:
    async def listed() -> list[tuple[str, list[str]]]:
        return [(host, [NAME]) for host in (*hosts, own) if host]

    return Volume(root, gateway, KEY, Peers(own, listed, PEER_KEY))


def partial_content(first: int, last: int) -> bytes:
    return (
        b"HTTP/1.1 206 Partial Content\r\ncontent-length: %d\r\ncontent-range: bytes %d-%d/%d\r\n"
        b"\r\n" % (last + 1 - first, first, last, len(CONTENT))
    )


@asynccontextmanager
async def scripted(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Start a server that answers every request like this. Return its address."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await answer(reader, writer)

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
