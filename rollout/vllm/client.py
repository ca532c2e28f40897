"""HTTP client of one vLLM server: samples out, weights in. No store.

Every request has the live version as its cache salt, and none is sent while that changes. A request
on its way, or in vLLM's queue, at an update has the old salt; the plugin therefore also empties the
prefix cache with every update. So no request that vLLM begins under a version reads keys and values
of another one's prompt.

A request that vLLM aborts for an update is resumed from its last token; one past its deadline ends.

`load` resumes the server if its weights are whole, and leaves it paused if they may not be, until a
later `load` succeeds or the server is restarted.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from rollout.aio import end
from rollout.http_transport import PerRequestTransport
from rollout.vllm import canary_scores
from rollout.vllm.options import SERVED_NAME
from rollout.vllm.progress import Counters, read_counters
from rollout.vllm.response import Sample, parse_answer, request_body
from rollout.vllm.resume import ABORTED, DEADLINE, joined, rest_of
from rollout.vllm_plugin.lora_slot import AdapterSlot
from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT
from rollout.vllm_plugin.wire import CAPACITY, GENERATE, MESSAGE, UNFINISHED, Capacity, Parsed
from services.contracts.canary import Floats

ABORT_AGAIN_SECONDS = 1.0

CONTROL_SECONDS = 60.0
"""For a call that waits for the current step at most, and reads no file."""
SLOWEST_DISK = 50e6
"""Bytes of weights a second; a server that loads more slowly hangs."""

UpdateMode = Literal["keep", "abort", "wait"]


class VLLMUnavailable(ConnectionError):
    """The server does not answer: it starts, hangs, or is gone."""


class RequestRefused(ValueError):
    """The server does not run this request (4xx); sending it again changes nothing."""


class PastDeadline(RuntimeError):
    """A request reached its deadline before anything was sampled."""


class LoadRefused(RuntimeError):
    """A version was not loaded. The old weights are whole, and the server goes on with them."""


class WeightsUnclear(RuntimeError):
    """An update broke after it may have touched the model. The server stays paused."""


class VLLMHangs(RuntimeError):
    """A call of an update has taken too long: restart the server."""


@dataclass(frozen=True)
class WeightUpdate:
    """A version for the weight-transfer engine, by files on the server's host."""

    path: str
    tag: str
    tensors: int
    kind: str = "full"
    bytes: int = 0
    """Of all files."""
    deltas: tuple[str, ...] = ()
    """Of kind `delta`: what to apply to the whole file at `path`, in this order."""
    whole: str = ""
    """The result as a file, if it was staged."""
    patch: str = ""
    """Or a staged file of what the deltas change of the version that vLLM serves."""


class PolicyClient:
    """One server, which listens on the Unix socket `socket`. `generate` may be called
    concurrently."""

    def __init__(self, socket: Path, control_seconds: float = CONTROL_SECONDS) -> None:
        self.socket = socket
        self.control_seconds = control_seconds
        # No limit on a generation: a server that hangs shows in `counters`.
        self._http = httpx.AsyncClient(
            base_url="http://vllm",
            timeout=httpx.Timeout(10.0, read=None),
            transport=PerRequestTransport(socket),
        )
        self._loading = asyncio.Lock()
        self._loads: set[asyncio.Task[float]] = set()
        # Cleared while the live version changes: requests wait.
        self._open = asyncio.Event()
        self._open.set()
        self._live = "none"
        self.updating = False
        """Whether the server is paused, or about to be: no progress is expected."""
        # Whether nobody knows which weights are loaded: then only a complete load resumes.
        self._unclear = False
        self.proven = asyncio.Event()
        """Cleared by a load, before anything is sampled under it, until somebody has found that
        vLLM serves the version."""

    @property
    def live(self) -> str:
        """The tag of the version that was loaded last."""
        return self._live

    async def close(self) -> None:
        """Close the connections. Requests in flight fail, and a load ends where it is: the server
        is not used again."""
        await end(self._loads)
        await self._http.aclose()

    async def generate(
        self,
        token_ids: list[int],
        n: int,
        sampling: dict[str, Any],
        expired: asyncio.Event | None = None,
    ) -> list[Sample]:
        """`n` samples of the prompt `token_ids` (see `response.sampling_params`). When `expired` is
        set, they end with the finish reason `deadline`.

        Raises RequestRefused, VLLMUnavailable, MalformedAnswer, and PastDeadline if `expired` was
        set before every sample had a token. Cancelling it aborts the request in vLLM.
        """
        begun = await self._request(token_ids, n, sampling, expired)
        if all(sample.finish_reason != ABORTED for sample in begun):
            return begun
        tasks = [
            asyncio.create_task(self._finish(token_ids, index, sample, sampling, expired))
            for index, sample in enumerate(begun)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            await end(task for task in tasks if not task.done())

    async def _finish(
        self,
        token_ids: list[int],
        index: int,
        sample: Sample,
        sampling: dict[str, Any],
        expired: asyncio.Event | None,
    ) -> Sample:
        while sample.finish_reason == ABORTED:
            done = sample.token_ids.tolist()
            if expired is not None and expired.is_set():
                if not done:
                    raise PastDeadline("nothing was sampled before the deadline")
                return replace(sample, finish_reason=DEADLINE)
            rest = rest_of(sampling, index, len(done))
            if rest["max_tokens"] < 1:
                return replace(sample, finish_reason="length")
            (more,) = await self._request([*token_ids, *done], 1, rest, expired)
            sample = joined(sample, more)
        return sample

    async def _request(
        self, token_ids: list[int], n: int, sampling: dict[str, Any], expired: asyncio.Event | None
    ) -> list[Sample]:
        """One request, with aborted samples as they are."""
        await self._open.wait()
        id = secrets.token_hex(8)
        body = request_body(token_ids, n, sampling, self._live, SERVED_NAME, id)
        watch = [] if expired is None else [asyncio.create_task(self._abort_at(expired, id))]
        try:
            response = await self._send("POST", GENERATE, content=body)
        finally:
            await end(watch)
        if response.is_client_error:
            raise RequestRefused(f"vLLM refused a request: {_message(response)}")
        if response.is_error:
            raise VLLMUnavailable(f"vLLM failed a request: {_message(response)}")
        return parse_answer(response.content, sampling)

    async def score(self, tokens: list[int], masks: bool, through_cache: bool) -> Floats:
        """vLLM's log-probabilities of `tokens` but the first, under the live version. `masks`: the
        server returns sampling masks; `through_cache`: with keys and values that vLLM has kept of
        an earlier call, if there are any.

        Raises VLLMUnavailable, and Unscored for what is no answer to it.
        """
        sampling = canary_scores.sampling(masks, through_cache)
        id = secrets.token_hex(8)
        body = request_body(tokens, 1, sampling, canary_scores.SALT, SERVED_NAME, id, priority=-1)
        response = await self._send("POST", GENERATE, content=body)
        if response.is_error:
            raise canary_scores.Unscored(f"vLLM does not score a prompt: {_message(response)}")
        return canary_scores.parse_scores(response.content, tokens)

    async def message(self, parsed: Parsed) -> dict[str, Any]:
        """An answer as an assistant's message, by the server's tool and reasoning parsers. Raises
        VLLMUnavailable, RequestRefused if they cannot read it."""
        content = msgspec.msgpack.encode(parsed)
        response = await self._send("POST", MESSAGE, content=content, timeout=CONTROL_SECONDS)
        if response.is_error:
            raise RequestRefused(f"vLLM does not parse an answer: {_message(response)}")
        found: dict[str, Any] = msgspec.json.decode(response.content)
        return found

    async def _abort_at(self, expired: asyncio.Event, id: str) -> None:
        """Once `expired` is set, abort the request in vLLM until it has answered."""
        await expired.wait()
        while True:
            with contextlib.suppress(VLLMUnavailable):
                # More than once: vLLM may not have taken in all samples yet.
                ids = {"request_ids": [id]}
                await self._send("POST", "/abort_requests", json=ids, timeout=30.0)
            await asyncio.sleep(ABORT_AGAIN_SECONDS)

    async def healthy(self) -> bool:
        """Whether the server answers its health check, within 10 seconds."""
        try:
            return (await self._send("GET", "/health", timeout=10.0)).is_success
        except VLLMUnavailable:
            return False

    async def counters(self) -> Counters:
        return read_counters((await self._get("/metrics")).content)

    async def unfinished(self) -> int:
        """How many sequences run or wait. Cheaper than `counters`."""
        return int((await self._get(UNFINISHED)).content)

    async def capacity(self) -> Capacity:
        """How much the server takes at once."""
        return msgspec.msgpack.decode((await self._get(CAPACITY)).content, type=Capacity)

    async def context_length(self) -> int:
        """Longest prompt + completion that the server takes, in tokens."""
        models = msgspec.json.decode((await self._get("/v1/models")).content)
        return int(models["data"][0]["max_model_len"])

    async def prepare(self, slot: AdapterSlot | None = None) -> None:
        """Make a new server ready for updates of its weights, or of the adapter in `slot`. The
        first pause of a server can take seconds, so there is one here, before it has work."""
        info = {} if slot is None else {"adapter": str(slot.folder)}
        await self._control("/init_weight_transfer_engine", {"init_info": info})
        await self._control("/pause?mode=keep&clear_cache=false")
        await self._control("/resume")

    async def load(self, update: WeightUpdate, mode: UpdateMode = "keep") -> float:
        """Make a version live. Returns seconds paused. Requests in flight go on under it (`keep`),
        are aborted and resumed under it (`abort`), or end before it (`wait`).

        Raises LoadRefused (the server goes on with its old weights), WeightsUnclear (paused: load
        again, or restart it), VLLMUnavailable (it could not be paused), VLLMHangs (restart it).
        Runs to its end, or until `close`, even if the caller is cancelled.
        """
        load = asyncio.create_task(self._load(update, mode))
        self._loads.add(load)
        load.add_done_callback(self._forget)
        return await asyncio.shield(load)

    def _forget(self, load: asyncio.Task[float]) -> None:
        self._loads.discard(load)
        if not load.cancelled():
            # Looked at: a caller that was cancelled does not ask for it.
            load.exception()

    async def _load(self, update: WeightUpdate, mode: UpdateMode) -> float:
        async with self._loading:
            self._open.clear()
            try:
                return await self._replace(update, mode)
            except VLLMHangs:
                self._unclear = True
                raise
            finally:
                self.updating = False
                if not self._unclear:
                    self._open.set()

    async def _replace(self, update: WeightUpdate, mode: UpdateMode) -> float:
        # Touches nothing, so that it need not be in the pause.
        await self._start_update(update)
        if mode == "wait":
            # As long as the longest completion takes, and the token counter moves meanwhile.
            await self._control("/pause?mode=wait&clear_cache=true", unlimited=True)
        self.updating, started = True, time.monotonic()
        if mode != "wait":
            clear = "true" if mode == "abort" else "false"
            await self._control(f"/pause?mode={mode}&clear_cache={clear}")
        try:
            info = {
                "path": update.path,
                "kind": update.kind,
                "tensors": update.tensors,
                "deltas": update.deltas,
                "whole": update.whole,
                "patch": update.patch,
                "tag": update.tag,
            }
            await self._control("/update_weights", {"update_info": info}, reads=update.bytes)
            await self._control("/finish_weight_update", {"weight_version": update.tag})
        except (LoadRefused, VLLMUnavailable) as error:
            if self._unclear or WEIGHTS_KEPT not in str(error):
                self._unclear = True
                raise WeightsUnclear(f"loading {update.tag}: {error}") from error
            await self._control("/resume")
            raise LoadRefused(f"loading {update.tag}: {error}") from error
        self._unclear = False
        self._live = update.tag
        self.proven.clear()
        await self._control("/resume")
        return time.monotonic() - started

    async def _start_update(self, update: WeightUpdate) -> None:
        try:
            await self._control("/start_weight_update")
        except LoadRefused as error:
            # An earlier update did not reach its pause, or lost its connection before its end.
            if "already active" not in str(error):
                kind = WeightsUnclear if self._unclear else LoadRefused
                raise kind(f"loading {update.tag}: {error}") from error
            await self._control("/finish_weight_update")
            await self._control("/start_weight_update")

    async def _control(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        reads: int = 0,
        unlimited: bool = False,
    ) -> None:
        """One call of an update, for which the server reads `reads` bytes. Raises LoadRefused,
        VLLMUnavailable, and VLLMHangs unless `unlimited`."""
        limit = None if unlimited else self.control_seconds + reads / SLOWEST_DISK
        call = path.partition("?")[0]
        try:
            response = await self._send("POST", path, json=body, timeout=limit)
        except VLLMUnavailable as error:
            if isinstance(error.__cause__, httpx.ReadTimeout):
                raise VLLMHangs(f"vLLM has not answered {call} for {limit:g} s") from error
            # vLLM closes the connection after an answer of 500, sometimes under the next request.
            # These calls may be repeated: at worst the second fails, and the load starts again.
            if not isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError):
                raise
            response = await self._send("POST", path, json=body, timeout=limit)
        if response.is_error:
            raise LoadRefused(f"{call}: {_message(response)}")

    async def _get(self, path: str) -> httpx.Response:
        return (await self._send("GET", path, timeout=30.0)).raise_for_status()

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise VLLMUnavailable(f"vLLM does not answer {path}: {what}") from error


def _message(response: httpx.Response) -> str:
    """The sentence in an error answer of vLLM, which has several shapes."""
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        return f"{response.status_code} {response.text[:500]}"
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return f"{response.status_code} {text}"
