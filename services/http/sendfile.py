"""Sends files from the page cache to the socket with the kernel's `sendfile`. The bytes are never
copied into this process, and threads are free while a client is slow.

uvicorn has no message for this, and uvloop's transports have no `sendfile`. So `HttpConnection`
offers an ASGI extension: after the header of an answer, it sends a part of an open file past the
transport, whose buffer is empty then. The limits of slow clients hold here too.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from io import BufferedReader
from typing import Any

import anyio.to_thread
from starlette.concurrency import iterate_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

SENDFILE = "headrace.sendfile"
SLICE = 4 << 20
"""Bytes that the kernel is handed at once; it takes as many as fit in the socket's buffer."""
OCTETS = "application/octet-stream"


class Bandwidth:
    """A limit for all files that a process sends, in Mbit/s; None: no limit."""

    def __init__(self, mbit: float | None) -> None:
        self._rate = None if mbit is None else mbit * 1e6 / 8
        """Bytes/s."""
        self._free_at = 0.0

    @property
    def slice(self) -> int:
        """Bytes to send at once: 50 ms of the limit, so all senders get their share."""
        return SLICE if self._rate is None else max(1 << 12, min(SLICE, int(self._rate / 20)))

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent. First come, first served."""
        if self._rate is None:
            return
        now = time.monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + count / self._rate
        await asyncio.sleep(begin - now)


async def limited(pieces: Iterator[bytes], bandwidth: Bandwidth) -> AsyncIterator[bytes]:
    """Yield the bytes of `pieces` at the rate of `bandwidth`. Each piece is made in a thread."""
    async for piece in iterate_in_threadpool(pieces):
        for start in range(0, len(piece), bandwidth.slice):
            part = piece[start : start + bandwidth.slice]
            await bandwidth.take(len(part))
            yield part


class SocketSender:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Future[None] | None = None
        self.unsent = 0
        """Bytes of the present part that the client has not taken."""

    async def send(self, file: int, start: int, stop: int, bandwidth: Bandwidth) -> None:
        """Send bytes `start` to `stop` of an open file. Raises ConnectionError if the connection
        ends, EOFError if the file does."""
        self.unsent = stop - start
        # A descriptor of its own, which stays valid during a call.
        copy = os.dup(self._transport.get_extra_info("socket").fileno())
        try:
            # The transport's buffer, with the answer's header, must be sent first.
            while self._transport.get_write_buffer_size():
                self._raise_if_closed()
                await asyncio.sleep(0.001)
            while self.unsent:
                budget = min(self.unsent, bandwidth.slice)
                await bandwidth.take(budget)
                while budget:
                    self._raise_if_closed()
                    try:
                        # The call waits for the disk, but never for the client.
                        sent = await anyio.to_thread.run_sync(
                            os.sendfile, copy, file, stop - self.unsent, budget
                        )
                    except BlockingIOError:
                        await self._until_writable(copy)
                        continue
                    if not sent:
                        raise EOFError("the file has become shorter")
                    self.unsent -= sent
                    budget -= sent
        finally:
            self.unsent = 0
            os.close(copy)

    def connection_lost(self) -> None:
        """Wake a sender that waits for the client."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def _until_writable(self, copy: int) -> None:
        loop = asyncio.get_running_loop()
        self._writable = loop.create_future()
        loop.add_writer(copy, self.connection_lost)
        try:
            await self._writable
        finally:
            loop.remove_writer(copy)

    def _raise_if_closed(self) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")


class OpenFile(FileResponse):
    """A response with an open file: its bytes are sent, wherever its name leads by now. Answers a
    request for one range, and a request for several ranges with the whole file; with `span`, always
    with this range."""

    def __init__(
        self, file: BufferedReader, bandwidth: Bandwidth, span: tuple[int, int] | None = None
    ) -> None:
        stat = os.fstat(file.fileno())
        path = f"/proc/self/fd/{file.fileno()}"
        super().__init__(path, media_type=OCTETS, stat_result=stat)
        self._file, self._bandwidth, self._size = file, bandwidth, stat.st_size
        self._span = span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(self._file):
            extension = scope.get("extensions", {}).get(SENDFILE)
            if extension is None or scope["method"] == "HEAD":
                await super().__call__(scope, receive, send)
            else:
                await self._send(scope, receive, send, extension["call"])

    async def _send(
        self, scope: Scope, receive: Receive, send: Send, sendfile: Callable[..., Awaitable[None]]
    ) -> None:
        headers = Headers(scope=scope)
        start, stop = 0, self._size
        validator = headers.get("if-range")
        current = validator in (None, self.headers["etag"], self.headers["last-modified"])
        wanted = byte_range(headers.get("range", ""), self._size) if current else None
        wanted = self._span or wanted
        if wanted is not None:
            start, stop = wanted
            if start >= stop:
                unsatisfiable = {"content-range": f"bytes */{self._size}"}
                await Response(status_code=416, headers=unsatisfiable)(scope, receive, send)
                return
            self.status_code = 206
            self.headers["content-range"] = f"bytes {start}-{stop - 1}/{self._size}"
            self.headers["content-length"] = str(stop - start)
        message: dict[str, Any] = {"type": "http.response.start", "status": self.status_code}
        await send(message | {"headers": self.raw_headers})
        await sendfile(self._file.fileno(), start, stop, self._bandwidth)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Parse a Range header for a file of `size` bytes into (first, last + 1); first ≥ last + 1 for
    an unsatisfiable range. Return None unless the header asks for exactly one range."""
    match = re.fullmatch(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", header)
    if match is None or match[0].strip() == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    last = int(match[2]) if match[2] else size - 1
    if match[2] and last < int(match[1]):
        return None
    return int(match[1]), min(size, last + 1)
