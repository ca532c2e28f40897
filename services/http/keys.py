"""ASGI middleware that requires one key for all requests."""

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
"""Paths that need no key: whether the service is alive, and whether it takes requests."""


def has_key(request: Request) -> bool:
    """Return whether a request has shown the key. Also true for a service without a key, to which
    only its own user can connect."""
    return bool(getattr(request.state, "has_key", True))


class KeyRequired:
    def __init__(self, app: ASGIApp, key: str, way_out: str) -> None:
        self.app = app
        self._digest = digest(key)
        self._way_out = way_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = bearer(Headers(scope=scope).get("authorization", "")) or ""
        shown = hmac.compare_digest(digest(key), self._digest)
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
