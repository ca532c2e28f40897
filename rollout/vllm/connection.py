"""The connection to one vLLM server, over its Unix socket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from rollout.http_transport import PerRequestTransport
from rollout.vllm.socket_requests import SocketRequests

REQUEST = httpx.Request("POST", "http://vllm")
"""What an httpx.Response names when it is refused."""


class VLLMUnavailable(ConnectionError):
    """The server does not answer: it starts, hangs, or is gone."""


class Connection:
    """One server, which listens on the Unix socket `socket`."""

    def __init__(self, socket: Path) -> None:
        self._whole = SocketRequests(socket)
        # No limit on a generation: a server that hangs shows in its counters.
        self._http = httpx.AsyncClient(
            base_url="http://vllm",
            timeout=httpx.Timeout(10.0, read=None),
            transport=PerRequestTransport(socket),
        )

    async def close(self) -> None:
        """Close it. Requests in flight fail."""
        await self._whole.close()
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        json: Any = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer to a request, whatever its status, within `timeout` seconds. `json`: in place
        of `content`. Raises VLLMUnavailable."""
        body = content if json is None else msgspec.json.encode(json)
        kind = "application/msgpack" if json is None else "application/json"
        try:
            status, answer = await self._whole.send(method, path, body, kind, timeout)
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise VLLMUnavailable(f"vLLM does not answer {path}: {what}") from error
        return httpx.Response(status, content=answer, request=REQUEST)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, **options: Any
    ) -> AsyncGenerator[httpx.Response, None]:
        """The answer to a request while it comes. Raises VLLMUnavailable, also for what the block
        reads of it."""
        try:
            async with self._http.stream(method, path, **options) as response:
                yield response
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise VLLMUnavailable(f"vLLM does not answer {path}: {what}") from error


def message_of(response: httpx.Response) -> str:
    """The sentence in an error answer of vLLM, which has several shapes."""
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        return f"{response.status_code} {response.text[:500]}"
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return f"{response.status_code} {text}"
