"""Protects a service from pages of other sites that are open in a user's browser.

Such a page may send requests to any address, with the browser's cookies for it. It may give its own
name this host's address (DNS rebinding), and then read the answers as its own. It cannot know a
key: a request with an accepted key skips all checks here.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http.problems import Problem

READING = frozenset({"GET", "HEAD", "OPTIONS"})
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::(?P<port>[0-9]{1,5}))?")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer."""
NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"
NO_FRAME = "frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
"""Headers for the API's description, whose page has a script of its own."""


class BrowserHeaders:
    """ASGI middleware that adds the headers with which browsers restrict an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                html = headers.get("content-type", "").startswith("text/html")
                headers.setdefault("Content-Security-Policy", NO_FRAME if html else NO_CONTENT)
            await send(message)

        await self.app(scope, receive, with_headers)


def host_of(headers: Headers) -> tuple[str, str]:
    """Return the name or address that a request asks for, and the port ("" for the default port).
    Raises Problem 400."""
    if (host := headers.get("host")) is None:
        return "", ""
    match = HOST.fullmatch(host)
    name = match["name"].lower() if match else ""
    if match is None or (name.startswith("[") and not _is_address(name)):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            "the header Host must be one name or address, with or without a port",
            headers={"Connection": "close"},
        )
    return name.rstrip("."), match["port"] or ""


def host_problem(name: str, allowed: Collection[str]) -> Problem | None:
    """Return 403 for a host name that another site may own. Addresses and `localhost` pass."""
    if _is_address(name) or name == "localhost" or name.endswith(".localhost") or name in allowed:
        return None
    return _forbidden(
        f"the request asks for the host {name!r}: if that is this service, name it in "
        "HEADRACE_ALLOWED_HOSTS"
    )


def foreign(method: str, headers: Mapping[str, str], sure: bool) -> Problem | None:
    """Return 403 for a change that another site's page sends. Browsers name the page in
    Sec-Fetch-Site, over plain http only in Origin. With `sure`, either header must be present."""
    if method in READING:
        return None
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return _forbidden("the request does not say which page sends it") if sure else None
    if site not in (None, "same-origin") or (origin is not None and _host(origin) is None):
        return _forbidden(f"the request comes from a page of {(origin or site)!r:.200}")
    if origin is not None and _host(origin) != headers.get("host", "").lower():
        return _forbidden(f"the request comes from a page of {origin!r:.200}")
    return None


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _forbidden(what: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        f"{what}; or send the API key as `Authorization: Bearer KEY`",
        headers={"Connection": "close"},
    )
