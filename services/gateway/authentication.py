"""Authenticates requests: by an API key, by the key of an agent's session, or by the page's cookie.

A key stands in the header `Authorization: Bearer KEY`, or in `x-api-key`. The page has a session
instead: its cookie holds a token, which differs from the key. The browser also sends the cookie
with requests from other sites' pages, and to other ports of this host. So a change with the cookie
must come from this gateway's own page. A session ends by logout, by time, or when its key is
revoked.
"""

import hmac
import secrets
from collections.abc import Callable, Collection
from http import HTTPStatus
from pathlib import Path

from redis.exceptions import RedisError
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from services.contracts.sessions import parse_session_id
from services.gateway.callers import Caller, refusal_of, with_headers
from services.gateway.openai.errors import BELOW as SESSIONS
from services.gateway.problems import away
from services.http import Problem, discard, foreign, host_of, host_problem, trust
from services.runtime.api_key import digest, shown_key
from services.runtime.logs import get_logger
from services.store import Store

HEALTH = frozenset({"/healthz", "/readyz"})
VIEWS = frozenset({"/", "/compare", "/datasets", "/submit", "/try", "/workers"})
VIEWS_BELOW = ("/chains/", "/datasets/", "/runs/")
"""Addresses of the page's views, all of them one document without data."""
PAGE = "/v1/session"
OPEN = VIEWS | {"/docs", "/guide", "/openapi.json", PAGE}
"""Answered without a key: the page, which then brings a key to `/v1/session`, the description of
the API, and the guide. Neither these nor health checks show any of the installation's data."""
OPEN_BELOW = (*VIEWS_BELOW, "/page/", "/static-offline-docs/", "/guide/")
"""The files of the page, of `/docs` and of the guide."""
UNKNOWN = "this gateway does not know this API key: it may have been revoked"
NOT_OURS = (
    "this is neither the key of this session (it has ended more than an hour ago, its group was "
    "opened again with new keys, or the key is another session's) nor an API key that this gateway "
    "knows"
)
FIRST_KEY = "first key"
"""The name of the key in the data folder, as records of runs have it."""
AGENT = "agent"
PAGE_SESSION_SECONDS = 7 * 24 * 3600

log = get_logger(__name__)


class Keyring:
    """Knows which keys and sessions are accepted. All methods raise RedisError. The first key needs
    no request to Redis."""

    def __init__(self, first: str, store: Store) -> None:
        self._first = digest(first)
        self._store = store

    async def caller(self, key: str) -> Caller | None:
        """Return who has this key, or None if it is neither the first key nor one that was made
        later."""
        return await self._known(digest(key))

    async def opens_session(self, path: str, key: str) -> bool:
        """Whether `key` is the key of the agent's session with this `path`."""
        try:
            run, attempt, index = parse_session_id(path.removeprefix(SESSIONS).split("/")[0])
        except ValueError:
            return False
        expected = await self._store.agent_sessions.key_of(run, attempt, index)
        return expected is not None and hmac.compare_digest(expected, digest(key))

    async def page_session_caller(self, token: str) -> Caller | None:
        """Return whose session has this token, or None if none has, or its key was revoked."""
        key = await self._store.page_sessions.key_of(digest(token))
        return None if key is None else await self._known(key)

    async def begin_page_session(self, key: str) -> str | None:
        """Begin a session for a key, or for the token of a login link. Return the session's token,
        or None if `key` is neither. Raises Problem for a key that the page could not use."""
        shown = digest(key)
        caller = await self._known(shown)
        if caller is not None and (problem := refusal_of(caller, "GET", PAGE)):
            raise problem
        if caller is None:
            linked = await self._store.page_sessions.use_login(shown)
            if linked is None or await self._known(linked) is None:
                return None
            shown = linked
        token = secrets.token_urlsafe(32)
        await self._store.page_sessions.begin("session", digest(token), shown, PAGE_SESSION_SECONDS)
        return token

    async def end_page_session(self, token: str) -> None:
        """End the session of `token`."""
        await self._store.page_sessions.end(digest(token))

    async def _known(self, shown: str) -> Caller | None:
        if hmac.compare_digest(shown, self._first):
            return Caller(FIRST_KEY, "admin", shown)
        record = await self._store.api_keys.find(shown)
        if record is None:
            return None
        return Caller(record.name, record.role, shown, record.surface, record.project)


class Authentication:
    """Answers 400, 401, 403 or 503 to requests that may not pass. `keyring_of` returns the keyring;
    `hosts` are the names by which browsers reach the page; `data` is the data folder."""

    def __init__(
        self, app: ASGIApp, keyring_of: Callable[[], Keyring], hosts: Collection[str], data: Path
    ) -> None:
        self.app = app
        self.data = data
        self.keyring_of = keyring_of
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one HTTP request. Other messages pass through."""
        if scope["type"] == "http" and (problem := await self._problem(scope)):
            log.info("refused", path=scope["path"], status=problem.status)
            await discard(scope, receive)
            await problem.response(scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _problem(self, scope: Scope) -> Problem | None:
        path, headers = scope["path"], Headers(scope=scope)
        try:
            host, port = host_of(headers)
        except Problem as malformed:
            return malformed
        if path in HEALTH:
            return None
        is_open = path in OPEN or path.startswith(OPEN_BELOW)
        key = shown_key(headers)
        try:
            if key is not None and not is_open:
                keyring = self.keyring_of()
                if path.startswith(SESSIONS) and await keyring.opens_session(path, key):
                    return self._admit(scope, Caller(AGENT, "submit", digest(key)))
                caller = await keyring.caller(key)
                if caller is None:
                    return unauthorized(NOT_OURS if path.startswith(SESSIONS) else UNKNOWN)
                return self._admit(scope, caller)
            if problem := host_problem(host, self.hosts):
                return problem
            token = page_session_token(headers, port, scope["scheme"])
            method = scope["method"]
            if problem := foreign(method, headers, sure=token is not None and not is_open):
                return problem
            if is_open:
                return None
            if token is None:
                return unauthorized("this gateway asks for an API key, and the request has none")
            caller = await self.keyring_of().page_session_caller(token)
            if caller is None:
                return unauthorized("the page's session has ended: log in again")
            return self._admit(scope, caller)
        except RedisError:
            return away(self.data)

    def _admit(self, scope: Scope, caller: Caller) -> Problem | None:
        """Note the caller of a request, and give its connection the limits of a trusted one. Return
        the refusal of a request that its key may not make."""
        trust(scope)
        try:
            caller = with_headers(caller, scope["path"], Headers(scope=scope))
        except Problem as problem:
            return problem
        scope.setdefault("state", {})["caller"] = caller
        return refusal_of(caller, scope["method"], scope["path"])


def cookie_name(port: str, secure: bool) -> str:
    """Return the name of the session's cookie. Browsers send cookies to all ports of a host, so
    each port has its own name. The prefix `__Host-` keeps other hosts of the domain from setting
    it."""
    return f"__Host-headrace-{port or 443}" if secure else f"headrace-{port or 80}"


def page_session_token(headers: Headers, port: str, scheme: str) -> str | None:
    """Return the token in the page's cookie, or None."""
    cookies = cookie_parser(headers.get("cookie", ""))
    token = cookies.get(cookie_name(port, True))
    # A proxy may have taken TLS off, and then only the browser knows.
    if token is None and scheme != "https":
        token = cookies.get(cookie_name(port, False))
    return token or None


def unauthorized(what: str) -> Problem:
    """Return a 401 that says where to find the key."""
    return Problem(
        HTTPStatus.UNAUTHORIZED,
        f"{what}. Send it as `Authorization: Bearer KEY`; the command line takes it from "
        "HEADRACE_API_KEY. The gateway's first key is in the file `api-key` of its data folder",
        headers={"WWW-Authenticate": 'Bearer realm="headrace"', "Connection": "close"},
    )
