"""Limits of what a client may hold of a server before its request is accepted: connections, time,
memory.

uvicorn waits without limit for the rest of a request, and its parser keeps headers of any size.
Here a connection that waits for its client is closed when the client falls silent or trickles.
Deadlines are on progress: a large upload over a slow line may take as long as it needs.

A request is trusted once its key was accepted and `trust` was called. A connection without a
trusted request counts towards the limit of its client's address. So the limit also fits a proxy,
which has one address for all clients: the requests that it forwards have keys.
"""

import ipaddress
import resource
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import uvicorn
from httptools import HttpParserError
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.http.sendfile import SENDFILE, Bandwidth, SocketSender
from services.runtime.logs import get_logger

TRUST = "headrace.trust"
FILES = 65_536
"""Open files that a server asks the kernel for, if its hard limit allows."""
FRAMING = 1 << 20
"""Bytes that a body may send without content: extensions of chunks, and trailers."""

log = get_logger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    header_seconds: float = 10.0
    """Seconds for a request's header, from the connection's start or the header's first byte."""
    header_bytes: int = 64 << 10
    body_seconds: float = 30.0
    body_bytes: int = 30 << 10
    """Bytes that a body must bring every `body_seconds`, while the server is ready to read."""
    unread_seconds: float = 120.0
    """Seconds within which the client must take a part of the answer."""
    a_client: int = 128
    """Connections without an accepted key that wait for one address."""
    connections: int = 8192
    pipelined: int = 16
    """Requests that one connection may send before the first is answered."""


class Waits(Enum):
    """The reason why a connection waits for its client."""

    HEADER = "a request's header"
    BODY = "a request's body"
    ANSWER = "the server"
    NEXT = "the next request"


class Connections:
    """Knows all connections of one server, and closes those that are overdue or too many."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        # In the order of their first bytes.
        self._all: dict[HttpConnection, None] = {}
        self._closed: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, connection: "HttpConnection") -> None:
        """Add a connection. If there are too many, a connection that waits for its client is
        closed: the oldest without an accepted key."""
        self._all[connection] = None
        if len(self._all) > self.limits.connections:
            waiting = (other for other in self._all if other.untrusted and not other.closing)
            self.end(next(waiting, connection), "too many connections")

    def remove(self, connection: "HttpConnection") -> None:
        self._all.pop(connection, None)

    def end(self, connection: "HttpConnection", why: str, status: int = 0) -> None:
        self._closed[why][connection.address] += 1
        connection.end(status)

    async def sweep(self) -> None:
        """Close overdue connections. uvicorn calls this once a second."""
        now = time.monotonic()
        untrusted: dict[str, list[HttpConnection]] = defaultdict(list)
        for connection in list(self._all):
            if late := connection.overdue(now):
                self.end(connection, *late)
            elif connection.untrusted and now - connection.since > 2:
                untrusted[connection.address].append(connection)
        for address, waiting in untrusted.items():
            # Connections of a Unix socket have no address.
            for connection in waiting[: -self.limits.a_client] if address else ():
                self.end(connection, "too many connections of one client without a key")
        for why, clients in self._closed.items():
            log.warning(
                "connections closed",
                reason=why,
                count=clients.total(),
                clients=[address for address, _ in clients.most_common(5)],
            )
        self._closed.clear()


class HttpConnection(HttpToolsProtocol):
    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.siblings = connections
        self.limits = connections.limits
        self.address = ""
        self.waits = Waits.HEADER
        self.trusted = False
        self._sender: SocketSender | None = None
        self.since = time.monotonic()
        """Start of the present wait; for a body, of the present window."""
        self._header_bytes = 0
        self._body_bytes = 0
        """Bytes of the body in the present window."""
        self._framing_bytes = 0
        """Bytes received since the last byte of a body."""
        self._unread = (0, self.since)
        """Bytes that the client has not taken, and the time of the last change of this number."""

    @property
    def untrusted(self) -> bool:
        """Whether the connection waits for a client without an accepted key."""
        return not self.trusted and (self.waits is not Waits.ANSWER or self._unread[0] > 0)

    @property
    def closing(self) -> bool:
        """Whether the connection ends once the client has taken what was sent."""
        return self.transport.is_closing()

    @property
    def unread(self) -> int:
        """Bytes of an answer that the client has not taken yet."""
        file_bytes = self._sender.unsent if self._sender else 0
        return file_bytes or self.transport.get_write_buffer_size()

    def overdue(self, now: float) -> tuple[str, int] | None:
        """Return why the connection should end, and the HTTP status for it (0: none). Return None
        if it may go on. Called once a second."""
        unread = self.unread
        if not unread or unread != self._unread[0]:
            self._unread = (unread, now)
        elif now - self._unread[1] > self.limits.unread_seconds:
            return "the client takes no answer", 0
        waited = now - self.since
        if self.closing or self.waits is Waits.ANSWER:
            return None
        if self.waits is not Waits.BODY:
            late = waited > self.limits.header_seconds
            status = 408 if self.waits is Waits.HEADER else 0
            return ("a header came too slowly", status) if late else None
        enough = self._body_bytes >= self.limits.body_bytes
        if waited > self.limits.body_seconds and not (enough or self.flow.read_paused):
            return "a body came too slowly", 408
        # A server that does not read is itself what the client waits for.
        if waited > self.limits.body_seconds or self.flow.read_paused:
            self.since, self._body_bytes = now, 0
        return None

    def end(self, status: int) -> None:
        """Close the connection, with an answer of `status` if no answer has begun."""
        # uvicorn does not declare at first that it may be None.
        begun = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        if self.waits is Waits.BODY:
            begun = self.cycle.response_started or bool(self.pipeline)
        if status and not begun:
            line = STATUS_LINE[status]
            self.transport.write(line + b"connection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
        else:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = _network(self.client[0]) if self.client else ""
        if not transport.get_extra_info("sslcontext"):
            self._sender = SocketSender(transport)
        self.siblings.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.siblings.remove(self)
        if self._sender is not None:
            self._sender.connection_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.waits is Waits.NEXT:
            # uvicorn stops its own timer, even if these bytes begin no request.
            self._wait(Waits.HEADER)
        super().data_received(data)
        if self.waits is Waits.HEADER:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes:
                self.siblings.end(self, "a header was too large", 431)
        elif self.waits is Waits.BODY:
            self._framing_bytes += len(data)
            if self._framing_bytes > FRAMING:
                self.siblings.end(self, "a body had more framing than content")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait(Waits.HEADER)
        # The next request on the connection must show a key of its own.
        self.trusted = False
        self.scope["extensions"] = {TRUST: {"call": self._trust}}
        if self._sender is not None:
            self.scope["extensions"][SENDFILE] = {"call": self._sendfile}

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body come trailers, which nobody here reads.
        if self.waits is Waits.HEADER:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined:
            raise HttpParserError("too many requests at once")
        self._wait(Waits.BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._wait(Waits.NEXT if self.cycle.response_complete else Waits.ANSWER)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.waits is Waits.ANSWER and self.cycle.response_complete:
            self._wait(Waits.NEXT)

    def _wait(self, what: Waits) -> None:
        self.waits, self.since = what, time.monotonic()
        self._header_bytes = self._body_bytes = self._framing_bytes = 0

    def _trust(self) -> None:
        self.trusted = True

    async def _sendfile(self, file: int, start: int, stop: int, bandwidth: Bandwidth) -> None:
        """Send a part of a file as the body of an answer whose header was sent."""
        cycle = self.cycle
        if self._sender is None or cycle.disconnected:
            return
        try:
            await self._sender.send(file, start, stop, bandwidth)
        except (OSError, EOFError):
            # The client is gone, or sees that it got fewer bytes than announced.
            self.transport.abort()
        cycle.expected_content_length -= stop - start


def _network(address: str) -> str:
    """Return the unit that counts as one client: an IPv4 address, or the /64 network of an IPv6
    host."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 4 or ip.ipv4_mapped:
        return str(ip if ip.version == 4 else ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))


def trust(scope: Scope) -> None:
    """Mark a request whose key was accepted."""
    if (extension := scope.get("extensions", {}).get(TRUST)) is not None:
        extension["call"]()


def server_config(
    app: ASGIApp, limits: ConnectionLimits | None = None, **options: Any
) -> uvicorn.Config:
    """Return uvicorn's settings for `app`, with the limits of this module and further `options`.
    Raises the process' limit of open files, and logs the limits."""
    files = _raise_open_files()
    if limits is None:
        # The other files are for Redis, the data volume and the libraries.
        limits = ConnectionLimits(connections=min(8192, files * 3 // 4))
    log.info(
        "limits",
        open_files=files,
        connections=limits.connections,
        connections_of_a_client_without_a_key=limits.a_client,
        header_seconds=limits.header_seconds,
        body_bytes_per_second=limits.body_bytes / limits.body_seconds,
    )
    connections = Connections(limits)
    return uvicorn.Config(
        app,
        http=partial(HttpConnection, connections=connections),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        server_header=False,
        callback_notify=connections.sweep,
        timeout_notify=0,
        **options,
    )


def _raise_open_files() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return FILES if soft == resource.RLIM_INFINITY else soft
