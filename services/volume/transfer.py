"""One HTTP request to a gateway or another host, for a file or a range of its bytes.

A thread receives straight into a buffer: that takes a third of the CPU time of an asynchronous
client, and leaves the event loop free. The waiting task may be cancelled at any moment.
"""

import asyncio
import base64
import http.client
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote, unquote, urlsplit

from headrace.redaction import redacted

FETCHING = "X-Headrace-Fetching"
"""Answer header: the host is downloading the file, and lacks the requested bytes so far."""
BUFFER = 1 << 20
CONNECT_SECONDS, SILENT_SECONDS = 5.0, 60.0
"""Timeouts for connecting, and for silence afterwards."""


class SourceAway(ConnectionError):
    """The source does not answer, or broke off; retrying later may help."""


class NotYet(SourceAway):
    """The source will have these bytes soon."""


class NotThere(FileNotFoundError):
    """The source has no such file."""


class Unauthorized(PermissionError):
    """The source requires another key."""


class WrongAnswer(ValueError):
    """The source's answer does not match the request."""


@dataclass(frozen=True)
class FileSource:
    """A gateway or another host, as a source of files."""

    url: str
    headers: dict[str, str] = field(repr=False)
    kind: str = "gateway"

    @property
    def shown(self) -> str:
        """The name for messages. The configured address may contain a password."""
        return f"the {self.kind} {redacted(self.url)}"


@dataclass
class Transfer:
    """A request for the bytes of file `name`, of size `size`, from `start` to before `stop` (None:
    its end)."""

    source: FileSource
    name: str
    size: int | None = None
    start: int = 0
    stop: int | None = None
    _length: int | None = None
    """Bytes of the answer; None if unknown."""
    _socket: socket.socket | None = None
    _ended: bool = False

    async def run(self, executor: Executor, take: Callable[[memoryview], object]) -> None:
        """Pass all bytes to `take`, piece by piece, in a thread of `executor`. `take` is not called
        after this has returned or was cancelled.

        Raises SourceAway, NotYet, NotThere, Unauthorized, WrongAnswer, and the errors of `take`.
        """
        loop = asyncio.get_running_loop()
        receiving = loop.run_in_executor(executor, self._receive, take)
        try:
            await asyncio.shield(receiving)
        except asyncio.CancelledError:
            self._end()
            await asyncio.wait([receiving])
            if not receiving.cancelled():
                receiving.exception()
            raise

    def _end(self) -> None:
        self._ended = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, take: Callable[[memoryview], object]) -> None:
        with self._asked() as response:
            buffer = memoryview(bytearray(BUFFER))
            received = 0
            while count := self._read_into(response, buffer):
                received += count
                take(buffer[:count])
        if self._length is not None and received < self._length:
            raise self._away("it broke off")

    @contextmanager
    def _asked(self) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer, once its header is there and right."""
        try:
            path = f"/v1/files/{quote(self.name)}"
            connection, target, headers = _connection(self.source.url, path)
        except ValueError:
            raise WrongAnswer(f"{self.source.shown} is no http address") from None
        with closing(connection):
            try:
                connection.connect()
                self._socket = connection.sock
                if self._ended:
                    raise self._away("nobody waits for it any more")
                connection.sock.settimeout(SILENT_SECONDS)
                connection.request("GET", target, headers=headers | self._headers())
                response = connection.getresponse()
            except (http.client.HTTPException, OSError) as error:
                raise self._away(type(error).__name__) from None
            with response:
                self._check(response)
                yield response

    def _read_into(self, response: http.client.HTTPResponse, buffer: memoryview) -> int:
        try:
            return response.readinto(buffer)
        except (http.client.HTTPException, OSError) as error:
            raise self._away(type(error).__name__) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "Connection": "close"} | self.source.headers
        if self.start or self.stop is not None:
            last = "" if self.stop is None else self.stop - 1
            headers["Range"] = f"bytes={self.start}-{last}"
        return headers

    def _check(self, response: http.client.HTTPResponse) -> None:
        """Raise unless the answer's header matches the request."""
        name, shown = self.name, self.source.shown
        match response.status:
            case HTTPStatus.NOT_FOUND:
                raise NotThere(f"{name} does not exist at {shown}")
            case HTTPStatus.UNAUTHORIZED:
                raise Unauthorized(f"{shown} wants a key, or another one")
            case HTTPStatus.SERVICE_UNAVAILABLE if response.headers[FETCHING]:
                raise NotYet(f"{shown} is fetching {name} itself")
            case status if status >= 500:
                raise SourceAway(f"{shown} answers {status} {response.reason} for {name}")
        ranged = self.start > 0 or self.stop is not None
        wanted = HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK
        if response.status != wanted:
            raise WrongAnswer(
                f"{shown} answers {response.status} {response.reason} for bytes of {name}"
            )
        first, length, total = 0, response.length, response.length
        if ranged:
            content_range = response.headers["Content-Range"] or ""
            numbers = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", content_range)
            first, last, total = map(int, numbers.groups()) if numbers else (-1, -1, None)
            length = last + 1 - first
            stop = total if self.stop is None else self.stop
            if (first, last + 1) != (self.start, stop) or response.length != length:
                raise WrongAnswer(f"{shown} sends other bytes of {name} than those asked for")
        if None not in (self.size, total) and total != self.size:
            raise WrongAnswer(f"{name} has {total} bytes at {shown}, its manifest says {self.size}")
        self._length = length

    def _away(self, what: str) -> SourceAway:
        return SourceAway(f"{self.source.shown} does not give {self.name}: {what}")


def _connection(base: str, path: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection to a URL's host, or to the proxy that the environment names for it, with
    the request's target and headers. User and password of the URL are left out: the key is shown
    instead. Raises ValueError for an invalid http address."""
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(base)
    target = parts.path.rstrip("/") + path
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is None or urllib.request.proxy_bypass(parts.hostname):
        return kind(parts.hostname, parts.port, timeout=CONNECT_SECONDS), target, {}
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not through.hostname:
        raise ValueError(proxy)
    shown = {}
    if through.username:
        user = f"{unquote(through.username)}:{unquote(through.password or '')}"
        shown["Proxy-Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    connection = kind(through.hostname, through.port, timeout=CONNECT_SECONDS)
    if parts.scheme == "https":
        connection.set_tunnel(parts.hostname, parts.port, shown)
        return connection, target, {}
    return connection, f"http://{parts.netloc.rpartition('@')[2]}{target}", shown
