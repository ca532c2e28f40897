"""No request is read further than it may be long, whatever its headers say."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.problems import BodyTooLarge


class BodyLimit:
    """ASGI middleware: raises BodyTooLarge (413) in the endpoint that reads too much."""

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], tuple[int, str]]) -> None:
        """`limit_of` gives the bytes a request may have, and the setting to raise them with."""
        self.app = app
        self.limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, counting what is read of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, setting = self.limit_of(scope)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        read = 0

        async def counted() -> Message:
            nonlocal read
            # The client need not send a body that its own header says is too long.
            if declared.isdigit() and int(declared) > limit:
                raise BodyTooLarge(limit, setting)
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise BodyTooLarge(limit, setting)
            return message

        await self.app(scope, counted, send)
