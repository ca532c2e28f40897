"""HTTP client of one vLLM server: samples in, weights in. No store, no clock but for timings.

`load` never leaves the server paused over weights that are known to be whole, and never lets
it go on over weights that are not: those stay paused until a later `load` succeeds, or the
server is restarted.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from rollout.samples import Sample, parse_answer, request_body
from rollout.vllm_options import SERVED_NAME
from rollout.weight_transfer import WEIGHTS_KEPT

TOKEN_COUNTER = re.compile(rb"^vllm:generation_tokens_total(?:\{[^}]*\})? ([0-9.eE+]+)$", re.M)

JSON_BODY = {"content-type": "application/json"}


class VLLMUnavailable(ConnectionError):
    """The server does not answer: it is starting, hung, or gone."""


class RequestRefused(ValueError):
    """The server will not run this request (4xx); sending it again changes nothing."""


class LoadRefused(RuntimeError):
    """A snapshot was not loaded. The old weights are whole, and serving goes on under them."""


class WeightsUnclear(RuntimeError):
    """An update broke after it may have touched the model. The server stays paused."""


@dataclass(frozen=True)
class Snapshot:
    """What `load` hands to the weight-transfer engine. `path` is local to the server."""

    path: str
    tag: str
    tensors: int
    kind: str = "full"


class PolicyClient:
    """One server at `url`. Safe for many concurrent calls of `generate`."""

    def __init__(self, url: str, update_seconds: float = 300.0) -> None:
        self.url = url
        self._update_seconds = update_seconds
        # A generation takes as long as it takes: a hung server shows in `tokens_generated`.
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(10.0, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        self._loading = asyncio.Lock()
        # Set while nobody can say which weights are loaded: then nothing but a whole load resumes.
        self._unclear = False

    async def close(self) -> None:
        """Close the connections; requests in flight fail."""
        await self._http.aclose()

    async def generate(
        self, token_ids: list[int], n: int, sampling: dict[str, Any], salt: str
    ) -> list[Sample]:
        """`n` samples of the prompt `token_ids` (see `samples.sampling_params`).

        Raises RequestRefused, VLLMUnavailable, samples.MalformedAnswer. Cancelling it aborts
        the request in vLLM.
        """
        body = request_body(token_ids, n, sampling, salt, SERVED_NAME)
        response = await self._send(
            "POST", "/inference/v1/generate", content=body, headers=JSON_BODY
        )
        if response.is_client_error:
            raise RequestRefused(f"vLLM refused a request: {_message(response)}")
        if response.is_error:
            raise VLLMUnavailable(f"vLLM failed a request: {_message(response)}")
        return parse_answer(response.content)

    async def healthy(self) -> bool:
        """Whether the server answers its health check, within 10 seconds."""
        try:
            return (await self._send("GET", "/health", timeout=10.0)).is_success
        except VLLMUnavailable:
            return False

    async def version(self) -> str:
        """The version tag that the server puts on tokens (`samples.UNSET_VERSION` at first)."""
        response = await self._send("GET", "/weight_info", timeout=30.0)
        response.raise_for_status()
        return str(msgspec.json.decode(response.content)["weight_version"])

    async def tokens_generated(self) -> int:
        """Tokens sampled since the server started: moves exactly while it makes progress."""
        response = await self._send("GET", "/metrics", timeout=30.0)
        response.raise_for_status()
        return sum(int(float(value)) for value in TOKEN_COUNTER.findall(response.content))

    async def context_length(self) -> int:
        """Longest prompt + completion the server takes, in tokens."""
        response = await self._send("GET", "/v1/models", timeout=30.0)
        response.raise_for_status()
        return int(msgspec.json.decode(response.content)["data"][0]["max_model_len"])

    async def checksums(self) -> dict[str, str]:
        """A checksum of each tensor as it is loaded now."""
        response = await self._send(
            "POST", "/weight_checker", json={"action": "checksum"}, timeout=self._update_seconds
        )
        response.raise_for_status()
        checksums: dict[str, str] = msgspec.json.decode(response.content)["checksums"]
        return checksums

    async def paused(self) -> bool:
        """Whether generation is paused."""
        response = await self._send("GET", "/is_paused", timeout=30.0)
        response.raise_for_status()
        return bool(msgspec.json.decode(response.content)["is_paused"])

    async def prepare(self) -> None:
        """Ready a fresh server for updates. The first pause of a server can take seconds, so
        one is done here, before it has work."""
        await self._control("/init_weight_transfer_engine", {"init_info": {}})
        await self._control("/pause?mode=keep&clear_cache=false")
        await self._control("/resume")

    async def load(self, snapshot: Snapshot) -> float:
        """Make `snapshot` live; requests in flight go on under it. Returns seconds paused.

        Raises LoadRefused (old weights serve on), WeightsUnclear (paused; load again, or
        restart the server), VLLMUnavailable (the server could not be paused at all). Runs to its
        end even if the caller is cancelled meanwhile.
        """
        return await asyncio.shield(self._load(snapshot))

    async def _load(self, snapshot: Snapshot) -> float:
        async with self._loading:
            started = time.monotonic()
            await self._control("/pause?mode=keep&clear_cache=false")
            try:
                await self._start_update()
                await self._control("/update_weights", {"update_info": _update_info(snapshot)})
                await self._control("/finish_weight_update", {"weight_version": snapshot.tag})
            except (LoadRefused, VLLMUnavailable) as error:
                if self._unclear or WEIGHTS_KEPT not in str(error):
                    self._unclear = True
                    raise WeightsUnclear(f"loading {snapshot.tag}: {error}") from error
                await self._control("/resume")
                raise LoadRefused(f"loading {snapshot.tag}: {error}") from error
            self._unclear = False
            await self._control("/resume")
            return time.monotonic() - started

    async def _start_update(self) -> None:
        try:
            await self._control("/start_weight_update")
        except LoadRefused as error:
            # An earlier update lost its connection between start and finish.
            if "already active" not in str(error):
                raise LoadRefused(f"{WEIGHTS_KEPT}: {error}") from error
            await self._control("/finish_weight_update")
            await self._control("/start_weight_update")

    async def _control(self, path: str, body: dict[str, Any] | None = None) -> None:
        try:
            response = await self._send("POST", path, json=body, timeout=self._update_seconds)
        except VLLMUnavailable as error:
            # vLLM closes the connection behind an answer of 500, sometimes under the next request.
            # These calls may be made twice: at worst the second is an error, and the load is
            # made again from its start.
            if not isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError):
                raise
            response = await self._send("POST", path, json=body, timeout=self._update_seconds)
        if response.is_error:
            raise LoadRefused(f"{path.partition('?')[0]}: {_message(response)}")

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise VLLMUnavailable(f"vLLM at {self.url} does not answer {path}: {what}") from error


def _update_info(snapshot: Snapshot) -> dict[str, Any]:
    return {"path": snapshot.path, "kind": snapshot.kind, "tensors": snapshot.tensors}


def _message(response: httpx.Response) -> str:
    """The sentence in an error answer of vLLM, whichever of its shapes it has."""
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        return f"{response.status_code} {response.text[:500]}"
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return f"{response.status_code} {text}"
