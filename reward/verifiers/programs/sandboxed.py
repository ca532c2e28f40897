"""The `code` verifier for programs that run in another container: a second reward service, without
a network, that listens on a Unix socket in a shared folder.

Name, parameters and verdicts are those of `reward.verifiers.programs.code`. The other service sets
the deadlines: an item that waits for a worker there must not time out here. Its `/healthz` tells
whether it hangs.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from reward.remote_endpoints import Endpoint, PassingError, client
from reward.verifiers.base import BadReferenceError, Item, RemoteVerifier, Verdict
from reward.verifiers.programs.code import CodeParams, CodeVerifier
from services.contracts.programs import PythonOutput
from services.contracts.scores import CheckResponse, ScoreResponse
from services.runtime.logs import get_logger
from services.runtime.watched import LOOK_SECONDS, while_healthy

log = get_logger(__name__)

URL = "http://sandbox"
"""Only for the Host header: the requests go to the socket."""
ATTEMPTS = 10
"""Attempts for an item, with pauses of up to 10 s: a restarted sandbox needs some seconds."""


@dataclass(frozen=True)
class _Sandbox(Endpoint):
    """The other service. A request to it lasts as long as its items need, while it is healthy."""

    async def _ask(
        self, http: httpx.AsyncClient, path: str, body: dict[str, Any], max_reply: int
    ) -> Any:
        request = super()._ask(http, path, body, max_reply)
        healthy = partial(http.get, f"{self.url}/healthz", timeout=LOOK_SECONDS)
        try:
            return await while_healthy(request, healthy, LOOK_SECONDS)
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise PassingError(f"endpoint {self.name!r} hangs: {what}") from error


class SandboxedCodeVerifier(RemoteVerifier[CodeParams]):
    """Sends programs to the other service."""

    name = CodeVerifier.name
    description = CodeVerifier.description
    Params = CodeParams

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._endpoint = _Sandbox("sandbox", URL)
        self._http: httpx.AsyncClient

    async def open(self) -> None:
        """Implements `RemoteVerifier.open`. It asks for the sandbox's own description. A sandbox
        that does not answer yet may do so when it is needed."""
        self._http = client(self._socket)
        self.notice = f"programs run in the sandbox at {self._socket}"
        try:
            answer = await self._http.get(f"{URL}/v1/verifiers", timeout=5)
            listed = answer.raise_for_status().json()["verifiers"]
            (described,) = (entry for entry in listed if entry["name"] == self.name)
            available, notice = bool(described["available"]), str(described["notice"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            self.notice += f", which does not answer yet ({type(error).__name__})"
            log.warning("the sandbox does not answer yet", socket=str(self._socket))
            return
        self.available = available
        if not self.available:
            self.notice = f"the sandbox at {self._socket}: {notice}"
            log.warning("a verifier is not available", verifier=self.name, problem=self.notice)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the other service's answer to a POST. Raises EndpointError."""
        return await self._endpoint.ask(self._http, path, body, ATTEMPTS)

    def deadline(self, params: CodeParams) -> float | None:
        """Implements `RemoteVerifier.deadline`. It returns None: the sandbox has deadlines of its
        own."""
        return None

    async def check_reference(self, item: Item, params: CodeParams) -> None:
        """Implements `RemoteVerifier.check_reference`. Raises EndpointError."""
        row = {"answer": item.answer, "columns": item.columns}
        use = {"verifier": self.name, "params": item.params, "rows": [row]}
        reply: Any = await self._endpoint.ask(self._http, "/v1/verifiers/check", {"uses": [use]}, 1)
        for problem in CheckResponse.model_validate(reply).problems:
            raise BadReferenceError(problem.message)

    async def output(self, item: Item, params: CodeParams) -> str:
        """Implements `RemoteVerifier.output`. Raises EndpointError."""
        body = {"code": item.completion, "seconds": params.timeout}
        reply = await self.ask("/v1/python", body)
        return PythonOutput.model_validate(reply).output

    async def score(self, item: Item, params: CodeParams) -> Verdict:
        """Implements `RemoteVerifier.score`. Raises EndpointError."""
        entry = {
            "id": "0",
            "verifier": self.name,
            "prompt": item.prompt,
            "completion": item.completion,
            "prefill": item.prefill,
            "truncated": item.truncated,
            "answer": item.answer,
            "columns": item.columns,
            "params": params.model_dump(),
        }
        reply = await self.ask("/v1/score", {"items": [entry]})
        (result,) = ScoreResponse.model_validate(reply).results
        parts = [(part.end, part.score) for part in result.parts]
        return Verdict(result.status, result.reward, result.detail, result.components, parts)
