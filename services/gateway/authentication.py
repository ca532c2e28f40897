"""Which requests are answered: with API keys those that carry one; without, those of no foreign web
page.

With keys, everything below `/v1/` and `/metrics` needs one, as `Authorization: Bearer KEY` or in
the page's cookie. Without keys the gateway listens on loopback. The danger then is a page of
another site, open in a browser on this machine: the headers Origin and Host must name this host.
"""

import hmac
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from redis.exceptions import RedisError
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.problems import RETRY_AFTER
from services.http import Problem, discard
from services.runtime.api_key import digest, is_loopback
from services.runtime.logs import get_logger
from services.store.api_keys import ApiKeys

COOKIE = "headrace-key"
OPEN = frozenset({"/v1/session"})
"""Answers without a key: it is where the page brings one."""

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
    """Answers 401, 403 or 503 to requests that may not pass. `keyring_of` gives the accepted keys;
    None: no key is needed."""

    def __init__(self, app: ASGIApp, keyring_of: Callable[[], Keyring | None]) -> None:
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
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        keyring = self.keyring_of()
        if keyring is None:
            return foreign(scope["method"], headers)
        path = scope["path"]
        if path in OPEN or not (path.startswith("/v1/") or path == "/metrics"):
            return None
        key = presented(headers)
        if key is None:
            return unauthorized("this gateway asks for an API key, and the request has none")
        try:
            if await keyring.accepts(key):
                return None
        except RedisError:
            return Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "Redis cannot be reached, where this API key would be looked up; try again in a "
                "moment",
                headers={"Retry-After": str(RETRY_AFTER), "Connection": "close"},
            )
        return unauthorized("this gateway does not know this API key: it may have been revoked")


def presented(headers: dict[str, str]) -> str | None:
    """The key of a request: its bearer token, else the page's cookie."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
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
        "HEADRACE_API_KEY. The gateway printed its first key at its first start and keeps it in "
        "the file `api-key` of its data folder",
        headers={"WWW-Authenticate": 'Bearer realm="headrace"', "Connection": "close"},
    )


def foreign(method: str, headers: dict[str, str]) -> Problem | None:
    """Why a request probably comes from a page of another site; None if nothing indicates that.

    A name in a foreign domain may have been made to point here (DNS rebinding); an address, or a
    name without a dot, cannot.
    """
    host = headers.get("host", "")
    name = urlsplit(f"//{host}").hostname or ""
    if "." in name and not (is_loopback(name) or _is_address(name)):
        return _forbidden(f"the request asks for the host {name!r}")
    origin = headers.get("origin")
    if method not in ("GET", "HEAD", "OPTIONS") and origin and urlsplit(origin).netloc != host:
        return _forbidden(f"the request comes from a page of {origin[:200]!r}")
    return None


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit()


def _forbidden(what: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        f"{what}, and this gateway asks for no API key, so it answers its own machine only. Start "
        "it with HEADRACE_AUTH=on to reach it by other names",
        headers={"Connection": "close"},
    )
