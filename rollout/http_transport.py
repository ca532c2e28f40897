"""An HTTP transport for many requests in flight.

httpx's pool searches all its connections for each request and answer, and asks the kernel about
idle ones. With 40 groups in flight that took half of a worker's CPU time. Here each request in
flight has its own pool of one connection.
"""

import socket
from collections.abc import AsyncIterator, Callable

import httpx

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A peer that vanished, such as a host without power, is noticed after a minute."""


class PerRequestTransport(httpx.AsyncBaseTransport):
    """Reuses connections; its cost does not grow with their number."""

    def __init__(self) -> None:
        # Reading the certificates takes longer than a request.
        self._certificates = httpx.create_ssl_context(trust_env=False)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._busy: set[httpx.AsyncHTTPTransport] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request. Raises httpx.TransportError."""
        # The server is least likely to have closed the connection that was used last.
        pool = self._idle.pop() if self._idle else self._new()
        self._busy.add(pool)
        try:
            response = await pool.handle_async_request(request)
        except BaseException:
            self._busy.discard(pool)
            await pool.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)

        def release() -> None:
            if pool in self._busy:
                self._busy.remove(pool)
                self._idle.append(pool)

        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_ReleasingBody(response.stream, release),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        while self._idle or self._busy:
            await (self._idle or self._busy).pop().aclose()

    def _new(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(
            verify=self._certificates, trust_env=False, socket_options=KEEPALIVE
        )


class _ReleasingBody(httpx.AsyncByteStream):
    """An answer's body. It releases its connection when it is read or closed."""

    def __init__(self, stream: httpx.AsyncByteStream, release: Callable[[], None]) -> None:
        self._stream, self._release = stream, release

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            # httpx has closed a connection whose body was not read to its end.
            self._release()
