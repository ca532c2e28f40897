"""The vLLM server of a rollout process. The next run keeps the server if its fingerprint is the
same, since only the weights change. Otherwise the server is replaced."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.wording import counted
from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.sampling_mask import server_flags
from rollout.vllm.process.gpu_lock import start_lock
from rollout.vllm.process.logs import delete_old_logs, log_of
from rollout.vllm.process.options import ServerConfig, fingerprint, with_memory
from rollout.vllm.process.server import VLLMFailed, VLLMServer
from rollout.vllm.process.sleeping import Sleeper
from rollout.vllm.process.start_times import StartTimes, start_key
from services.contracts.config import RLConfig
from services.contracts.config.vllm import CACHE_BYTES, VLLM, spelled
from services.contracts.records import RunRecord, WorkerRecord
from services.contracts.weights import ADAPTER
from services.estimate.inputs import Model, Worker, of_half
from services.estimate.model_shape import shape_of
from services.estimate.one_gpu import with_share
from services.estimate.rollout_memory import shared_cache
from services.runtime.gpu_handover import Handover
from services.runtime.gpus import ALONE_MEMORY, Device, installed_device
from services.runtime.logs import get_logger
from services.store import Store

log = get_logger(__name__)

Served = tuple[PolicyClient, VLLMServer]
"""A running server, with its client."""


DEFINING = ("config.json", "tokenizer.json")
"""Files that two models have in common if one server can serve both."""


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


class Start(NamedTuple):
    """How a server starts."""

    options: VLLM
    dtype: str
    device: Device
    more: dict[str, Any]
    fingerprint: str


def require_gpus(tensor_parallel_size: int, gpus: int | None) -> None:
    """Raise ValueError unless this worker has a GPU for each part of the model. `gpus` is how many
    it has; None: unknown."""
    if gpus is not None and tensor_parallel_size > gpus:
        raise ValueError(
            f"rollout.vllm.tensor_parallel_size {tensor_parallel_size}: this worker has "
            f"{counted(gpus, 'GPU')}. Set it to {max(1, gpus)}, or start workers with "
            f"HEADRACE_GPUS_PER_WORKER={tensor_parallel_size} on a machine that has as many"
        )


def keeps_its_share(run: RunRecord, share: float | None, sleeps: bool) -> bool:
    """Whether a vLLM with this `share` of a GPU leaves a learner on the same GPU the memory that it
    needs in `run`. `sleeps`: whether this vLLM sleeps while the learner trains."""
    if run.kind != "rl":
        return False
    options = run.config.get("rollout", {}).get("vllm", {})
    alike = bool(options.get("sleeps")) == sleeps
    return alike and bool(options.get("gpu_memory_utilization") == share)


class Serving:
    """Starts and stops this worker's vLLM server. There is at most one server at a time."""

    def __init__(self, settings: RolloutSettings, record: WorkerRecord, store: Store) -> None:
        self._settings = settings
        self._record = record
        self._store = store
        self._began: float | None = None
        """When the present start of vLLM began, by the monotonic clock."""
        self._running: Served | None = None
        self._fingerprint = ""
        self._share: float | None = None
        """The server's share of its GPU, by its run's config."""
        self._sleeper: Sleeper | None = None
        """Set if the server takes turns with the learner."""

    async def free_memory_for(self, run: RunRecord) -> None:
        """Stop vLLM if the learner is on the same GPU, and the next run gives vLLM another share of
        it or none. The learner waits for the memory. Raises RedisError."""
        sleeps = self._sleeper is not None
        if self._running is None or keeps_its_share(run, self._share, sleeps):
            return
        learner = await self._store.pools.devices(self._settings.pool)
        trains = {gpu.uuid for gpu in learner.gpus} if learner else set()
        if any(gpu.uuid in trains for gpu in self._record.devices):
            log.info("vLLM ends: the learner needs its memory", run=run.id)
            await self.stop()

    async def serve(
        self,
        config: RLConfig,
        model: Path,
        run_events: RunEvents,
        weights: int = 0,
        goes_on: Callable[[], Awaitable[bool]] | None = None,
        more_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> Served | None:
        """Return a server for the run, or None if the run ended before the server's turn to start.
        `weights` is the size in bytes of the run's newest version. `goes_on` returns whether a
        server is still wanted; default: while the run is the pool's active one. `more_options`:
        further options of the server.

        Raises what `VLLMServer.start` raises, RedisError, and ValueError if there are too few GPUs
        or the model's config.json has no dtype.
        """
        start = await self._start(config, model, more_options)
        options, dtype, device, more, needed = start
        if self._running is not None:
            if needed == self._fingerprint and self._running[1].alive:
                await run_events.state("ready", "the vLLM of the previous run serves this run, too")
                return self._running
            await self.stop()
        self._record.state = "starting"
        limit = f"{options.startup_seconds:g} s (rollout.vllm.startup_seconds)"
        when = " once no other starts on its GPU" if device == "cuda" else ""
        if options.sleeps:
            when = " once the learner has left their GPU"
        times, key = StartTimes(self._settings.data), start_key(model, options, device)
        usual = self._record.usual_start_seconds = times.usual(key)
        about = "" if usual is None else f"about {usual:.0f} s, "
        await run_events.state("starting", f"vLLM starts{when}; {about}at most {limit}", usual)
        logs = self._settings.data / "logs"
        living = {worker.id for worker in await self._store.workers.list()} | {self._record.id}
        await asyncio.to_thread(delete_old_logs, logs, living)
        server = VLLMServer(
            ServerConfig(
                model, options, dtype, device, command=self._settings.vllm_command, more=more
            ),
            log_of(logs, self._record.id),
            self._settings.vllm_kv_cache_gib,
        )
        handover = await self._handover(options, device)
        with ExitStack() as held:
            if handover is not None:
                held.callback(handover.close)
            async with start_lock(self._settings) if device == "cuda" else nullcontext():
                # The turn may have come because the run is over. The next run may need all the
                # memory.
                wanted = goes_on() if goes_on is not None else self._goes_on(run_events.run)
                if not await wanted:
                    return None
                self._began = began = time.monotonic()
                try:
                    policy = await server.start()
                finally:
                    self._began = None
                seconds = time.monotonic() - began
                times.add(key, seconds)
            held.pop_all()
        policy.weights.bytes += weights
        self._running, self._fingerprint = (policy, server), needed
        if handover is not None:
            self._sleeper = Sleeper(policy, server, handover)
        self._share = config.rollout.vllm.gpu_memory_utilization
        await run_events.state("ready", f"vLLM serves after {seconds:.0f} s")
        return self._running

    async def _start(self, config: RLConfig, model: Path, more_options: Mapping[str, Any]) -> Start:
        """Return how a server of the run starts. Raises RedisError, and ValueError if there are too
        few GPUs or the model's config.json has no dtype."""
        options = with_memory(config.served, self._settings.vllm_gpu_memory_utilization)
        # The type of the published weights, whatever `model.dtype: auto` meant to the learner.
        file = model / "config.json"
        described = json.loads(file.read_text())
        dtype = described.get("dtype")
        if not isinstance(dtype, str):
            raise ValueError(f'{file} names no dtype: add one, like "dtype": "bfloat16"')
        device = installed_device()
        more = {**server_flags(config.sampling, device == "cpu"), **more_options}
        if device == "cuda":
            require_gpus(options.tensor_parallel_size, self._record.gpus)
            more |= await self._cache_flags(config, options, described)
        needed = await asyncio.to_thread(fingerprint, model, options, dtype, more)
        return Start(options, dtype, device, more, needed)

    async def kept(
        self, config: RLConfig, model: Path, more_options: Mapping[str, Any]
    ) -> Served | None:
        """Return the running server if `serve` would return it. Raises as `serve`."""
        start = await self._start(config, model, more_options)
        if self._running is None or start.fingerprint != self._fingerprint:
            return None
        return self._running if self._running[1].alive else None

    def alike(self, model: Path) -> Served | None:
        """Return the running server if it serves models of this folder's architecture and
        tokenizer, whatever its options. Reads files."""
        if self._running is None or not self._running[1].alive:
            return None
        other = self._running[1].config.model
        if (other / ADAPTER).is_dir() or (model / ADAPTER).is_dir():
            return None
        same = all(_content(model / name) == _content(other / name) for name in DEFINING)
        return self._running if same else None

    async def _cache_flags(
        self, config: RLConfig, options: VLLM, model: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the size of vLLM's cache as an option, if the learner is on the same GPU and the
        run's config does not name a size. `model` is the content of config.json. Raises
        RedisError."""
        shape = shape_of(model)
        if shape is None or CACHE_BYTES in {spelled(name) for name in options.extra}:
            return {}
        learner = await self._store.pools.devices(self._settings.pool)
        divided = with_share(config, options.gpu_memory_utilization or ALONE_MEMORY, options.sleeps)
        worker = Worker(tuple(self._record.devices))
        size = shared_cache(divided, Model(shape, of_half(model)), learner, worker)
        return {} if size is None else {CACHE_BYTES: size}

    async def _goes_on(self, run: str) -> bool:
        """Whether the run is still the pool's active one. Raises RedisError."""
        active = await self._store.runs.active(self._settings.pool)
        return active is not None and active.id == run and not active.state.ending

    async def _handover(self, options: VLLM, device: Device) -> Handover | None:
        """Return the GPU if vLLM and the learner take turns on it, once the learner has left it.
        Raises ValueError if the GPU is unknown."""
        if not options.sleeps:
            return None
        devices = self._record.devices
        if device == "cuda" and len(devices) != 1:
            raise ValueError(
                "learner and vLLM take turns on one GPU (rollout.vllm.sleeps), and the driver "
                f"shows {len(devices)} to this worker: set sleeps to false and "
                "gpu_memory_utilization to null, or start one worker on the learner's GPU"
            )
        name = devices[0].uuid if devices else device
        handover = Handover(self._settings.data / "gpu-locks", name)
        try:
            await handover.begin_to_sample()
        except BaseException:
            handover.close()
            raise
        return handover

    def describe(self, record: WorkerRecord) -> None:
        """Tell in the record how long vLLM has been starting."""
        began = self._began
        record.starting_seconds = None if began is None else round(time.monotonic() - began, 1)

    def check(self) -> None:
        if self._sleeper is not None and self._sleeper.problem:
            raise VLLMFailed(self._sleeper.problem)
        if self._running is not None:
            self._running[1].check()

    async def explained(self, error: VLLMFailed) -> str:
        """Return why vLLM failed, with the cause from its log. Call it before `stop`."""
        if self._running is None or error.named_cause:
            return str(error)
        server = self._running[1]
        try:
            # A server that has ended refuses connections, which is what `error` reports.
            await asyncio.to_thread(server.check)
        except VLLMFailed as ended:
            return str(ended)
        return str(await asyncio.to_thread(server.failed, str(error)))

    async def stop(self) -> None:
        """Stop the server, if there is one. After a cancelled call another call finishes the
        stop."""
        running, sleeper = self._running, self._sleeper
        # No run may use it any more.
        self._fingerprint = ""
        if sleeper is not None:
            await sleeper.stop()
        if running is not None:
            policy, server = running
            await policy.close()
            await server.stop()
        if sleeper is not None:
            sleeper.close()
        self._running = self._sleeper = None
