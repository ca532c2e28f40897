"""The connection to one vLLM server, over its Unix socket.

It uses aiohttp, which vLLM installs. A request with httpx takes twenty times the CPU time, a third
of a worker's time for a turn of an agent.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

CONNECT_SECONDS = 10.0
LONGEST_LINE = 1 << 20
"""Bytes of a streamed answer's line, half of what aiohttp accepts."""


class VLLMUnavailable(ConnectionError):
    """The server does not answer: it is starting, hangs, or is gone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer of the server."""

    status: int
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether the server executed the request."""
        return self.status < 400

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500


class VLLMConnection:
    """Connections to the server on the Unix socket `socket`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._made: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Created by the first request, because it belongs to the event loop.
        if self._made is None:
            self._made = aiohttp.ClientSession(
                "http://vllm",
                connector=aiohttp.UnixConnector(str(self._socket), limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=LONGEST_LINE,
            )
        return self._made

    async def close(self) -> None:
        """Close the connections. Requests in flight fail, and so do later ones."""
        self._closed = True
        if self._made is not None:
            await self._made.close()

    async def send(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        json: Any = None,
        timeout: float | None = None,
    ) -> Reply:
        """Return the answer to a request, whatever its status, within `timeout` seconds. `json`
        replaces `content`. Raises VLLMUnavailable."""
        body = content if json is None else msgspec.json.encode(json)
        kind = "application/msgpack" if json is None else "application/json"
        async with self._request(method, path, body, kind, timeout) as response:
            return Reply(response.status, await response.read())

    @asynccontextmanager
    async def stream(
        self, path: str, content: bytes
    ) -> AsyncGenerator[Reply | AsyncIterable[bytes], None]:
        """Yield the lines of an answer as they arrive, or a whole error answer. Raises
        VLLMUnavailable, also while the block reads lines."""
        async with self._request("POST", path, content, "application/msgpack", None) as response:
            if response.status >= 400:
                yield Reply(response.status, await response.read())
            else:
                yield response.content

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, content: bytes, media_type: str, timeout: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if self._closed:
            raise VLLMUnavailable(f"vLLM is not asked for {path}: its connection is closed")
        # A generation has no limit: the counters show a server that hangs.
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {"content-type": media_type}
        try:
            async with self._http.request(
                method, path, data=content or None, headers=headers, timeout=limits
            ) as response:
                yield response
        except VLLMUnavailable:
            raise
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as error:
            late = f"no answer for {timeout:g} s" if timeout and timed_out(error) else ""
            what = late or str(error) or type(error).__name__
            raise VLLMUnavailable(f"vLLM does not answer {path}: {what}") from error


def timed_out(error: BaseException | None) -> bool:
    """Whether the server has the request but did not answer in time."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def broken_off(error: BaseException | None) -> bool:
    """Whether the connection broke during a request that the server may have started."""
    never = aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    return isinstance(error, aiohttp.ClientError | ConnectionError) and not isinstance(error, never)


def message_of(reply: Reply) -> str:
    """Return the message of vLLM's error answer, which has several shapes."""
    try:
        body = msgspec.json.decode(reply.content)
    except msgspec.MsgspecError:
        return f"{reply.status} {reply.content.decode(errors='replace')[:500]}"
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return f"{reply.status} {text}"
