"""The largest body that a service reads, as ASGI middleware, whatever the headers say.

It never buffers a refused body, but reads and discards it for a while: many clients send the whole
body before they read the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http.problems import Problem

DISCARD_BYTES = 256 << 20
DISCARD_SECONDS = 10.0


@dataclass(frozen=True)
class Limit:
    """Most bytes of one body, and how to get round it, in words."""

    bytes: int
    way_out: str


class BodyLimit:
    """Answers 413 to bodies over what `limit_of` says of their request."""

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], Limit]) -> None:
        self.app = app
        self.limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope)
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit.bytes:
            await discard(scope, receive)
            await _refuse(limit, scope, receive, send)
            return
        read, more, answered = 0, True, False

        async def counted() -> Message:
            nonlocal read, more
            message = await receive()
            read += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if read > limit.bytes:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except _TooLargeError:
            if answered:
                raise
            if more:
                await _drain(receive)
            await _refuse(limit, scope, receive, send)


async def discard(scope: Scope, receive: Receive) -> None:
    """Read and drop the body of a request that is refused, up to a limit in bytes and in time."""
    # A client that waits for "100 Continue" never sends what nobody will read.
    if dict(scope["headers"]).get(b"expect", b"").lower() != b"100-continue":
        await _drain(receive)


async def _drain(receive: Receive) -> None:
    left, more = DISCARD_BYTES, True
    with anyio.move_on_after(DISCARD_SECONDS):
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = bool(message.get("more_body", False))


async def _refuse(limit: Limit, scope: Scope, receive: Receive, send: Send) -> None:
    problem = Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is over {_size(limit.bytes)}: {limit.way_out}",
        headers={"Connection": "close"},
    )
    await problem.response(scope["path"])(scope, receive, send)


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit} ({count} bytes)"
    return f"{count} bytes"


class _TooLargeError(BaseException):
    """Not an Exception: the framework turns those that interrupt its reading into a 400."""
