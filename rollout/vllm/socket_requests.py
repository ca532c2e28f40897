"""HTTP requests over a Unix socket, whose answers come whole.

httpx takes more than a millisecond of CPU time for one, a third of what a worker spent on a turn of
an agent. Here a request is one write, and uvicorn's parser reads the answer. Errors are httpx's.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import httptools
import httpx

CONNECT_SECONDS = 10.0


class SocketRequests:
    """Requests to the server that listens on `socket`, each on a connection of its own, which later
    ones use again."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    async def send(
        self, method: str, path: str, content: bytes, media_type: str, seconds: float | None
    ) -> tuple[int, bytes]:
        """Status and body of the answer, which may take `seconds`. Raises httpx.TransportError.
        Cancelling it closes the connection, by which the server knows."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: vllm\r\ncontent-type: {media_type}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        # The last one used: it is the least likely to have been closed meanwhile.
        one = self._idle.pop() if self._idle else await self._connect()
        self._busy.add(one)
        try:
            async with asyncio.timeout(seconds):
                answer = await one.answer(head.encode() + content)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no answer for {seconds:g} s") from error
        finally:
            self._busy.discard(one)
            if one.reusable and not self._closed:
                self._idle.append(one)
            else:
                one.transport.abort()
        return answer

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        for one in [*self._idle, *self._busy]:
            one.transport.abort()
        self._idle.clear()

    async def _connect(self) -> "_Connection":
        def forget(lost: "_Connection") -> None:
            if lost in self._idle:
                self._idle.remove(lost)

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, one = await loop.create_unix_connection(
                    lambda: _Connection(forget), str(self._socket)
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return one


class _Connection(asyncio.Protocol):
    """One request at a time."""

    transport: asyncio.Transport

    def __init__(self, lost: Callable[["_Connection"], None]) -> None:
        self._lost = lost
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.reusable = False
        """Whether the last answer is whole, and the server takes more."""

    async def answer(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to `request`. Raises httpx.TransportError."""
        self.reusable = False
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            raise httpx.ReadError("the server has closed the connection")
        self.transport.write(request)
        return await self._answer

    # --- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of it.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            # Nobody has asked for it.
            self.reusable = False
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"this is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        self.reusable = False
        self._fail(httpx.ReadError(str(exc or "the server has closed the connection")))

    def _fail(self, error: httpx.TransportError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # --- called by the parser -----------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        assert self._answer is not None
        self.reusable = self._parser.should_keep_alive() and not self._answer.done()
        if not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))
