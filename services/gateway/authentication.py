"""Which requests are answered: those that carry an API key, from whatever host they come.

A key stands in the header `Authorization: Bearer KEY`, or in the page's cookie. The browser also
sends the cookie with requests that another site's page makes, so a change with the cookie must come
from this gateway's own page.
"""

import hmac
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from redis.exceptions import RedisError
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.problems import RETRY_AFTER
from services.http import Problem, discard, trust
from services.runtime.api_key import bearer, digest
from services.runtime.logs import get_logger
from services.store.api_keys import ApiKeys

COOKIE = "headrace-key"
OPEN = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/v1/session"})
"""Answered without a key: the page, which then brings a key to `/v1/session`, the description of
the API, and health checks. None shows anything of the installation's data."""
OPEN_BELOW = ("/web/", "/static-offline-docs/")
"""The files of the page and of `/docs`."""

log = get_logger(__name__)


class Keyring:
    """The keys that are accepted."""

    def __init__(self, first: str, others: ApiKeys) -> None:
        self._first = digest(first)
        self._others = others

    async def accepts(self, key: str) -> bool:
        """Whether this is the first key or one that was made later. Raises RedisError; for the
        first one Redis is not asked."""
        shown = digest(key)
        if hmac.compare_digest(shown, self._first):
            return True
        return await self._others.find(shown) is not None


class Authentication:
    """Answers 401, 403 or 503 to requests that may not pass. `keyring_of` gives the accepted
    keys."""

    def __init__(self, app: ASGIApp, keyring_of: Callable[[], Keyring]) -> None:
        self.app = app
        self.keyring_of = keyring_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP passes through."""
        if scope["type"] == "http" and (problem := await self._problem(scope)):
            log.info("refused", path=scope["path"], status=problem.status)
            await discard(scope, receive)
            await problem.response(scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _problem(self, scope: Scope) -> Problem | None:
        path = scope["path"]
        if path in OPEN or path.startswith(OPEN_BELOW):
            return None
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        key = bearer(headers.get("authorization", ""))
        if key is None:
            key = cookie(headers)
            if key is not None and (problem := foreign(scope["method"], headers)):
                return problem
        if key is None:
            return unauthorized("this gateway asks for an API key, and the request has none")
        try:
            if await self.keyring_of().accepts(key):
                trust(scope)
                return None
        except RedisError:
            return Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "Redis cannot be reached, where this API key would be looked up; try again in a "
                "moment",
                headers={"Retry-After": str(RETRY_AFTER), "Connection": "close"},
            )
        return unauthorized("this gateway does not know this API key: it may have been revoked")


def cookie(headers: dict[str, str]) -> str | None:
    """The key in the page's cookie."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel and morsel.value else None


def unauthorized(what: str) -> Problem:
    """401, with the way out."""
    return Problem(
        HTTPStatus.UNAUTHORIZED,
        f"{what}. Send it as `Authorization: Bearer KEY`; the command line takes it from "
        "HEADRACE_API_KEY. The gateway's first key is in the file `api-key` of its data folder",
        headers={"WWW-Authenticate": 'Bearer realm="headrace"', "Connection": "close"},
    )


def foreign(method: str, headers: dict[str, str]) -> Problem | None:
    """403 for a change that a page of another origin sends; None if it is none."""
    origin = headers.get("origin")
    if method in ("GET", "HEAD", "OPTIONS") or not origin:
        return None
    if origin.partition("://")[2] == headers.get("host", ""):
        return None
    return Problem(
        HTTPStatus.FORBIDDEN,
        f"the request comes from a page of {origin[:200]!r}, and the page's cookie is taken from "
        "this gateway's own page only: send the API key as `Authorization: Bearer KEY`",
        headers={"Connection": "close"},
    )
