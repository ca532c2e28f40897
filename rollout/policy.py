"""HTTP client of one vLLM server: samples in, weights in. No store, no clock but for timings.

Every request carries the version that is live as its cache salt, and none is sent while that
changes. A request that was on its way, or in vLLM's queue, at an update has the salt of before; the
prefix cache is emptied with every update all the same (`rollout.forgetting`). So no request that
vLLM begins under a version reads keys and values that another one's prompt has left.

What vLLM was told to abort, for an update, is continued from where it was; what is cut off by its
deadline ends there.

`load` never leaves the server paused over weights that are known to be whole, and never lets
it go on over weights that are not: those stay paused until a later `load` succeeds, or the
server is restarted.
"""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx
import msgspec

from rollout.adapter_slot import AdapterSlot
from rollout.connections import OneEach
from rollout.continuing import ABORTED, DEADLINE, joined, rest_of
from rollout.counters import Counters, read_counters
from rollout.samples import Sample, parse_answer, request_body
from rollout.tasks import end
from rollout.vllm_options import SERVED_NAME
from rollout.weight_transfer import WEIGHTS_KEPT

JSON_BODY = {"content-type": "application/json"}

# What vLLM puts before a request's id.
ID_PREFIX = "generate-tokens-"
ABORT_AGAIN_SECONDS = 1.0

CONTROL_SECONDS = 60.0
"""For a call that waits for the step under way at most, and reads no file."""
SLOWEST_DISK = 50e6
"""Bytes of weights a second, below which a server does not load but hang."""

UpdateMode = Literal["keep", "abort", "wait"]


class VLLMUnavailable(ConnectionError):
    """The server does not answer: it is starting, hung, or gone."""


class RequestRefused(ValueError):
    """The server will not run this request (4xx); sending it again changes nothing."""


class PastDeadline(RuntimeError):
    """A request was cut off before anything was sampled."""


class LoadRefused(RuntimeError):
    """A snapshot was not loaded. The old weights are whole, and serving goes on under them."""


class WeightsUnclear(RuntimeError):
    """An update broke after it may have touched the model. The server stays paused."""


class VLLMHangs(RuntimeError):
    """A call of an update has taken far longer than it can: the server is to be restarted."""


@dataclass(frozen=True)
class Snapshot:
    """What `load` hands to the weight-transfer engine. `path` is local to the server."""

    path: str
    tag: str
    tensors: int
    kind: str = "full"
    bytes: int = 0


class PolicyClient:
    """One server at `url`. Safe for many concurrent calls of `generate`."""

    def __init__(self, url: str, control_seconds: float = CONTROL_SECONDS) -> None:
        self.url = url
        self.control_seconds = control_seconds
        # A generation takes as long as it takes: a hung server shows in `counters`.
        self._http = httpx.AsyncClient(
            base_url=url, timeout=httpx.Timeout(10.0, read=None), transport=OneEach()
        )
        self._loading = asyncio.Lock()
        # Closed while the live version changes: `generate` waits before it sends.
        self._open = asyncio.Event()
        self._open.set()
        self._live = "none"
        self.updating = False
        """Whether the server is paused, or about to be, and no progress is to be expected."""
        # Set while nobody can say which weights are loaded: then nothing but a whole load resumes.
        self._unclear = False

    async def close(self) -> None:
        """Close the connections; requests in flight fail."""
        await self._http.aclose()

    async def generate(
        self,
        token_ids: list[int],
        n: int,
        sampling: dict[str, Any],
        cut: asyncio.Event | None = None,
    ) -> list[Sample]:
        """`n` samples of the prompt `token_ids` (see `samples.sampling_params`). Where `cut` is
        set meanwhile, they end where they are, with the finish reason `deadline`.

        Raises RequestRefused, VLLMUnavailable, samples.MalformedAnswer, and PastDeadline where
        `cut` was set before every sample had a token. Cancelling it aborts the request in vLLM.
        """
        begun = await self._ask(token_ids, n, sampling, cut)
        if all(sample.finish_reason != ABORTED for sample in begun):
            return begun
        tasks = [
            asyncio.create_task(self._finish(token_ids, index, sample, sampling, cut))
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
        cut: asyncio.Event | None,
    ) -> Sample:
        while sample.finish_reason == ABORTED:
            done = sample.token_ids.tolist()
            if cut is not None and cut.is_set():
                if not done:
                    raise PastDeadline("nothing was sampled before the deadline")
                return replace(sample, finish_reason=DEADLINE)
            rest = rest_of(sampling, index, len(done))
            if rest["max_tokens"] < 1:
                return replace(sample, finish_reason="length")
            (more,) = await self._ask([*token_ids, *done], 1, rest, cut)
            sample = joined(sample, more)
        return sample

    async def _ask(
        self, token_ids: list[int], n: int, sampling: dict[str, Any], cut: asyncio.Event | None
    ) -> list[Sample]:
        """One request: what vLLM answers, aborted samples as they are."""
        await self._open.wait()
        id = secrets.token_hex(8)
        body = request_body(token_ids, n, sampling, self._live, SERVED_NAME, id)
        watching = [asyncio.create_task(self._cut_off(cut, id))] if cut is not None else []
        try:
            response = await self._send(
                "POST", "/inference/v1/generate", content=body, headers=JSON_BODY
            )
        finally:
            await end(watching)
        if response.is_client_error:
            raise RequestRefused(f"vLLM refused a request: {_message(response)}")
        if response.is_error:
            raise VLLMUnavailable(f"vLLM failed a request: {_message(response)}")
        return parse_answer(response.content, sampling)

    async def _cut_off(self, cut: asyncio.Event, id: str) -> None:
        """Once `cut` is set, have vLLM abort the request until it has answered."""
        await cut.wait()
        while True:
            with contextlib.suppress(VLLMUnavailable):
                # Not only once: of several samples vLLM may still be taking some in.
                ids = {"request_ids": [ID_PREFIX + id]}
                await self._send("POST", "/abort_requests", json=ids, timeout=30.0)
            await asyncio.sleep(ABORT_AGAIN_SECONDS)

    async def healthy(self) -> bool:
        """Whether the server answers its health check, within 10 seconds."""
        try:
            return (await self._send("GET", "/health", timeout=10.0)).is_success
        except VLLMUnavailable:
            return False

    async def counters(self) -> Counters:
        """What the server counts, over all its engines."""
        response = await self._send("GET", "/metrics", timeout=30.0)
        response.raise_for_status()
        return read_counters(response.content)

    async def context_length(self) -> int:
        """Longest prompt + completion the server takes, in tokens."""
        response = await self._send("GET", "/v1/models", timeout=30.0)
        response.raise_for_status()
        return int(msgspec.json.decode(response.content)["data"][0]["max_model_len"])

    async def prepare(self, slot: AdapterSlot | None = None) -> None:
        """Ready a fresh server for updates: of its weights, or of the adapter in `slot`. The first
        pause of a server can take seconds, so one is done here, before it has work."""
        info = {} if slot is None else {"adapter": str(slot.folder)}
        await self._control("/init_weight_transfer_engine", {"init_info": info})
        await self._control("/pause?mode=keep&clear_cache=false")
        await self._control("/resume")

    async def load(self, snapshot: Snapshot, mode: UpdateMode = "keep") -> float:
        """Make `snapshot` live. Returns seconds paused. Requests in flight go on under it
        (`keep`), are aborted and continued under it (`abort`), or end before it (`wait`).

        Raises LoadRefused (old weights serve on), WeightsUnclear (paused; load again, or
        restart the server), VLLMUnavailable (the server could not be paused at all), VLLMHangs
        (restart it). Runs to its end even if the caller is cancelled meanwhile.
        """
        return await asyncio.shield(self._load(snapshot, mode))

    async def _load(self, snapshot: Snapshot, mode: UpdateMode) -> float:
        async with self._loading:
            self._open.clear()
            try:
                return await self._replace(snapshot, mode)
            except VLLMHangs:
                self._unclear = True
                raise
            finally:
                self.updating = False
                if not self._unclear:
                    self._open.set()

    async def _replace(self, snapshot: Snapshot, mode: UpdateMode) -> float:
        if mode == "wait":
            # As long as the longest completion takes, and tokens move meanwhile.
            await self._control("/pause?mode=wait&clear_cache=true", patient=True)
            self.updating, started = True, time.monotonic()
        else:
            self.updating, started = True, time.monotonic()
            clear = "true" if mode == "abort" else "false"
            await self._control(f"/pause?mode={mode}&clear_cache={clear}")
        try:
            await self._start_update()
            info = {"update_info": _update_info(snapshot)}
            await self._control("/update_weights", info, reads=snapshot.bytes)
            await self._control("/finish_weight_update", {"weight_version": snapshot.tag})
        except (LoadRefused, VLLMUnavailable) as error:
            if self._unclear or WEIGHTS_KEPT not in str(error):
                self._unclear = True
                raise WeightsUnclear(f"loading {snapshot.tag}: {error}") from error
            await self._control("/resume")
            raise LoadRefused(f"loading {snapshot.tag}: {error}") from error
        self._unclear = False
        self._live = snapshot.tag
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

    async def _control(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        reads: int = 0,
        patient: bool = False,
    ) -> None:
        """One call of an update, for which the server `reads` so many bytes. Raises LoadRefused,
        VLLMUnavailable, and VLLMHangs unless `patient`."""
        limit = None if patient else self.control_seconds + reads / SLOWEST_DISK
        try:
            response = await self._send("POST", path, json=body, timeout=limit)
        except VLLMUnavailable as error:
            if isinstance(error.__cause__, httpx.ReadTimeout):
                call = path.partition("?")[0]
                raise VLLMHangs(f"vLLM has not answered {call} for {limit:g} s") from error
            # vLLM closes the connection behind an answer of 500, sometimes under the next request.
            # These calls may be made twice: at worst the second is an error, and the load is
            # made again from its start.
            if not isinstance(error.__cause__, httpx.ReadError | httpx.RemoteProtocolError):
                raise
            response = await self._send("POST", path, json=body, timeout=limit)
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
