"""The largest body that the service reads, as ASGI middleware. Never buffers what it refuses."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reward.problems import ProblemError

# What is still read and thrown away of a refused body, so that its sender gets to see the answer.
DISCARD_BYTES = 256 << 20
DISCARD_SECONDS = 10.0


class BodyLimit:
    """Answers 413 to bodies over `limit` bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.limit:
            await self._refuse(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limit:
                raise _TooLargeError
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLargeError:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = time.monotonic() + DISCARD_SECONDS
        left, more = DISCARD_BYTES, True
        while more and left > 0 and time.monotonic() < deadline:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        problem = ProblemError(
            413,
            f"the body is over {self.limit} bytes: send fewer items a request, or raise the limit "
            "(--body-limit)",
            headers={"Connection": "close"},
        )
        await problem.response(scope["path"])(scope, receive, send)


class _TooLargeError(BaseException):
    """Not an Exception: the framework turns those that interrupt its reading into a 400."""
