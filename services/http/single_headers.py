"""ASGI middleware against repeated headers. If a header is repeated, one reader may use the first
and another the last: a check would see another request than the route."""

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.body_limits import discard
from services.http.problems import Problem

ONCE = frozenset(
    {
        b"authorization", b"content-encoding", b"content-length", b"content-type", b"cookie",
        b"expect", b"host", b"idempotency-key", b"if-none-match", b"if-range",
        b"last-event-id", b"origin", b"range", b"sec-fetch-site", b"transfer-encoding",
        b"x-api-key", b"x-forwarded-proto",
    }
)  # fmt: skip
"""Headers that a service reads, or the server below it. Each is read with starlette's Headers."""


class SingleHeaders:
    """Answers 400 to a request that repeats a header of ONCE. Must come before all readers of
    headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = (
            [name for name, _ in scope["headers"] if name in ONCE]
            if scope["type"] == "http"
            else []
        )
        if len(names) == len(set(names)):
            await self.app(scope, receive, send)
            return
        twice = sorted({name.decode() for name in names if names.count(name) > 1})
        problem = Problem(
            HTTPStatus.BAD_REQUEST,
            f"the request has the header {', '.join(twice)} more than once: send it once",
            headers={"Connection": "close"},
        )
        await discard(scope, receive)
        await problem.response(scope["path"])(scope, receive, send)
