"""One key for all requests, as ASGI middleware."""

import hmac
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.body_limits import discard
from services.http.connections import trust
from services.http.problems import Problem
from services.runtime.api_key import bearer, digest

OPEN = frozenset({"/healthz", "/readyz"})
"""Answered without a key: whether the service is alive, and whether it takes requests."""


def has_key(request: Request) -> bool:
    """Whether a request has shown the key. Also true where the service asks for none, because only
    its own user can connect to it."""
    return bool(getattr(request.state, "has_key", True))


class KeyRequired:
    """Answers 401, with `way_out`, to requests that do not show `key`."""

    def __init__(self, app: ASGIApp, key: str, way_out: str) -> None:
        self.app = app
        self._digest = digest(key)
        self._way_out = way_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        shown = self._shown(scope)
        scope.setdefault("state", {})["has_key"] = shown
        if shown:
            trust(scope)
        if shown or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        await discard(scope, receive)
        problem = Problem(
            HTTPStatus.UNAUTHORIZED,
            self._way_out,
            headers={"WWW-Authenticate": 'Bearer realm="headrace"', "Connection": "close"},
        )
        await problem.response(scope["path"])(scope, receive, send)

    def _shown(self, scope: Scope) -> bool:
        shown = bearer(Headers(scope=scope).get("authorization", ""))
        return hmac.compare_digest(digest(shown or ""), self._digest)
