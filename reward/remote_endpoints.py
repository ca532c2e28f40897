"""Endpoints: the services that remote verifiers ask, by name, at a URL that the operator has set.

Items name an endpoint and never a URL. So a request decides neither which hosts this process
contacts nor which host receives a key.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,62})=(.+)", re.DOTALL)
# Bytes. Replies of scoring services are short; a longer one would only fill this process's memory.
MAX_REPLY = 4 << 20


class EndpointError(Exception):
    """The endpoint cannot be used. The message names the endpoint and the reason."""


class PassingError(EndpointError):
    """The endpoint failed this time; a retry may succeed."""


class SettingsError(EndpointError):
    """The endpoint refuses the key, or does not know the path or the model (401, 403, 404). The
    operator can mend that."""


class UnavailableError(PassingError):
    """The endpoint is down or takes no requests now (429, 503), whatever the requests hold."""


def named(setting: str) -> tuple[str, str]:
    """Split `name=value` into a pair. Raises ValueError."""
    match = _NAMED.fullmatch(setting)
    if match is None:
        raise ValueError(f"{setting!r} must be name=value, and the name letters, digits, _ . -")
    return match[1], match[2]


def is_url(value: str) -> bool:
    """Tell an address from a folder or an import path."""
    return value.startswith(("http://", "https://"))


def is_named_url(value: str) -> bool:
    """Tell whether the entry has the form NAME=URL."""
    match = _NAMED.fullmatch(value)
    return match is not None and is_url(match[2])


@dataclass(frozen=True)
class Endpoint:
    """The address of one service, and how to log in there."""

    name: str
    url: str
    key: str = field(default="", repr=False)

    async def ask(
        self,
        http: httpx.AsyncClient,
        path: str,
        body: dict[str, Any],
        attempts: int,
        on_unavailable: Callable[[], None] = lambda: None,
        max_reply: int = MAX_REPLY,
    ) -> Any:
        """POST `body` as JSON, in up to `attempts` attempts, and return the JSON of the reply.

        A reply may have at most `max_reply` bytes. The call has no deadline of its own: cancel it.
        It calls `on_unavailable` before each retry after an UnavailableError. Raises EndpointError.
        """

        def before_sleep(state: RetryCallState) -> None:
            if state.outcome and isinstance(state.outcome.exception(), UnavailableError):
                on_unavailable()

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(PassingError),
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            before_sleep=before_sleep,
            reraise=True,
        )
        return await retrying(self._ask, http, path, body, max_reply)

    async def _ask(
        self, http: httpx.AsyncClient, path: str, body: dict[str, Any], max_reply: int
    ) -> Any:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = http.build_request("POST", self.url + path, json=body, headers=headers)
        try:
            response = await http.send(request, stream=True)
            try:
                content = await _content(response, max_reply)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            kind = UnavailableError if away else PassingError
            raise kind(f"endpoint {self.name!r}: {what}") from error
        if not response.is_success:
            excerpt = content[:300].decode(errors="replace")
            passing = response.is_server_error or response.status_code in (408, 409, 425, 429)
            failure: type[EndpointError] = PassingError if passing else EndpointError
            if response.status_code in (429, 503):
                failure = UnavailableError
            elif response.status_code in (401, 403, 404):
                failure = SettingsError
            raise failure(f"endpoint {self.name!r} answers {response.status_code}: {excerpt}")
        try:
            return httpx.Response(200, content=content).json()
        except (ValueError, RecursionError):
            raise PassingError(f"endpoint {self.name!r} answers no JSON") from None


async def _content(response: httpx.Response, limit: int) -> bytes:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        # A compressed chunk may unpack to a thousand times its size; with two codings, to a million
        # times.
        raise EndpointError(f"the reply is compressed ({encoding[:40]}), which nobody asked for")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > limit:
            raise EndpointError(f"the reply is longer than {limit} bytes")
    return bytes(content)


def client(socket: Path | None = None) -> httpx.AsyncClient:
    """Return a client for endpoints. The callers' deadlines bound it, and no proxy setting diverts
    it. All requests go to the Unix socket `socket`, if given."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=10.0),
        transport=httpx.AsyncHTTPTransport(limits=limits, uds=str(socket) if socket else None),
        headers={"Accept-Encoding": "identity"},
        trust_env=False,
    )
