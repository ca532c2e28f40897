"""ASGI middleware that limits the body of a request, and all bodies together, whatever the headers
say.

A refused body is never buffered. It is read and discarded for a while, because many clients send
the whole body before they read the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http.problems import Problem
from services.runtime.logs import get_logger

DISCARD_BYTES = 256 << 20
DISCARD_SECONDS = 10.0
SMALL = 64 << 10
"""A body of up to this many bytes is read, however many others there are."""
RETRY_AFTER = 5
"""Seconds until a client retries that sent too much at the same time as others."""

log = get_logger(__name__)


@dataclass
class InFlight:
    """The bodies that are being read or worked on: their bytes, and the maximum."""

    limit: int
    bytes: int = 0


@dataclass(frozen=True)
class Limit:
    """The limit for one body: bytes, the way out in words, and the counter of all bodies."""

    bytes: int
    way_out: str
    in_flight: InFlight


class BodyLimit:
    """Answers 413 to bodies over the limit that `limit_of` returns, and 503 if all bodies together
    are too large."""

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], Limit]) -> None:
        self.app = app
        self.limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope)
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit.bytes:
            await discard(scope, receive)
            await _too_large(limit).response(scope["path"])(scope, receive, send)
            return
        in_flight = limit.in_flight
        read, more, answered = 0, True, False

        async def counted() -> Message:
            nonlocal read, more
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            in_flight.bytes += size
            more = bool(message.get("more_body", False))
            if read > limit.bytes:
                raise _RefusedError(_too_large(limit))
            if in_flight.bytes > in_flight.limit and read > SMALL:
                log.warning("bodies in flight at their limit", bytes=in_flight.bytes)
                raise _RefusedError(_too_many())
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _RefusedError as refused:
            if answered:
                raise
            in_flight.bytes -= read
            read = 0
            if more:
                await _drain(receive)
            await refused.problem.response(scope["path"])(scope, receive, send)
        finally:
            in_flight.bytes -= read


async def discard(scope: Scope, receive: Receive) -> None:
    """Read and drop the body of a refused request, up to a limit in bytes and in time."""
    # A client that waits for "100 Continue" never sends the body.
    if Headers(scope=scope).get("expect", "").lower() != "100-continue":
        await _drain(receive)


async def _drain(receive: Receive) -> None:
    budget, more = DISCARD_BYTES, True
    with anyio.move_on_after(DISCARD_SECONDS):
        while more and budget > 0:
            message = await receive()
            budget -= len(message.get("body", b""))
            more = bool(message.get("more_body", False))


def _too_large(limit: Limit) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is over {_size(limit.bytes)}: {limit.way_out}",
        headers={"Connection": "close"},
    )


def _too_many() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"other requests are sending too much already; try again in {RETRY_AFTER} s",
        headers={"Retry-After": str(RETRY_AFTER), "Connection": "close"},
    )


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit} ({count} bytes)"
    return f"{count} bytes"


class _RefusedError(BaseException):
    """Not an Exception: the framework turns exceptions during its reading into a 400."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
