"""Serves checkpoints of finished runs on a worker that has no work of a run.

Training comes first: as soon as `trains` says so, the worker stops answering, and its vLLM is the
next run's. The gateway writes which model a call waits for (`services.store.work.model_demands`),
and reads in heartbeats which models a worker serves. One vLLM has one set of weights, so a worker
swaps models once their calls have ended; a model that has calls all the time gives way after
SHARE_SECONDS.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path
from typing import cast

from redis.exceptions import RedisError

from rollout.policy.checkpoint_files import ServedFiles, forget_converted, served_files
from rollout.policy.fixed_adapter import FixedAdapter
from rollout.policy.served_config import served_config
from rollout.policy.served_model import ServedModel
from rollout.run_events import RunEvents
from rollout.run_setup import WorkerParts
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.model_files import TokenizerLike, load_tokenizer
from rollout.vllm.process.logs import brief
from rollout.vllm.process.options import MAX_LORAS
from rollout.vllm.process.server import VLLMFailed
from rollout.vllm.weights.weight_follower import CannotPin, WeightFollower
from rollout.work.run_context import RunContext
from services.contracts.config import RLConfig
from services.contracts.events import EventKind
from services.contracts.policy_calls import Failure
from services.contracts.records import RunRecord, WorkerRecord
from services.contracts.rows.rendering import use_template
from services.contracts.rows.template_limits import check_noted
from services.contracts.schema import SchemaMismatch
from services.contracts.served_models import ModelDemand
from services.models import check_folder
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.volume import DamagedFile, KeyRefused

log = get_logger(__name__)

POLL_SECONDS = 0.25
KEEP_SECONDS = 5.0
"""Between two renewals of leases."""
SHARE_SECONDS = 20.0
"""How long a model with calls is served before another one may take its place."""
DRAIN_SECONDS = 30.0
"""How long its open calls may take then."""
ADAPTERS_AT_ONCE = 8
"""Adapters that vLLM computes with at once, on a worker that only serves."""
MOST_ADAPTERS = 16
"""Adapters that a worker serves: each waits for its calls."""
IDLE_SECONDS = 600.0
"""A model without a call for this long is released, and its vLLM is stopped."""
UNUSABLE = (DamagedFile, FileNotFoundError, SchemaMismatch, KeyRefused, CannotPin, ValueError)
"""The checkpoint, or the run's config, is at fault."""


class ServedEvents(RunEvents):
    """Events of serving a run that is over: its own events have ended."""

    async def _add(self, key: str, kind: EventKind, data: dict[str, object]) -> None:
        log.info("serving", run=self.run, **data)


class ModelServer:
    """Serves models on demand with the vLLM of one worker."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts, self._demands = parts, parts.store.model_demands
        self._pool, self._worker = parts.settings.pool, parts.record.id
        self._models: list[ServedModel] = []
        self._loading: ModelDemand | None = None
        self._answered = self._tokens = 0
        """Answers, and their tokens, of models that are no longer served."""

    def describe(self, record: WorkerRecord) -> None:
        calls = [model.calls for model in self._models]
        record.models = [model.demand.model for model in self._models]
        record.loading = self._loading.model if self._loading else None
        record.files = [name for model in self._models for name in model.files]
        record.policy_calls = sum(map(len, calls))
        record.policy_answers = self._answered + sum(loop.answered for loop in calls)
        record.policy_tokens = self._tokens + sum(loop.tokens for loop in calls)
        if record.starting_seconds is not None:
            record.state = "starting"
        elif self._loading is not None:
            record.state = "loading"
        else:
            record.state = "serving" if self._models else "idle"

    async def serve(self, trains: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
        """Serve until `trains` returns True or `stop` is set. vLLM may still run then. Raises
        RedisError, OSError."""
        self._parts.heartbeat.worker = self
        loops = [
            asyncio.create_task(self._serve(trains), name="serve models"),
            asyncio.create_task(self._keep_leases(), name="keep served models"),
            asyncio.create_task(_until(trains), name="training comes first"),
            asyncio.create_task(stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(loops)
            await self._end_models(self._models)
            await self._release_lease(self._loading)
            self._loading = self._parts.heartbeat.worker = None
        for task in done:
            task.result()

    # --- one model after the other --------------------------------------------------------------

    async def _serve(self, trains: Callable[[], Awaitable[bool]]) -> None:
        while True:
            try:
                self._check()
                await self._release_idle()
                demand = await self._demands.take(self._pool, self._worker)
                if demand is not None:
                    self._parts.record.error = ""
                    await self._load(demand, trains)
            except VLLMFailed as error:
                await self._vllm_failed(error)
            # A worker with calls leaves demands to others.
            busy = any(len(model.calls) for model in self._models)
            await asyncio.sleep(POLL_SECONDS * (4 if busy else 1))

    def _check(self) -> None:
        if self._models:
            self._parts.serving.check()
        for model in self._models:
            model.check()

    async def _vllm_failed(self, error: VLLMFailed) -> None:
        serving, record = self._parts.serving, self._parts.record
        record.error = await serving.explained(error)
        log.error("vLLM failed while it served a finished run", reason=record.error)
        await self._end_models(self._models)
        await serving.stop()
        record.restarts += 1

    async def _load(self, demand: ModelDemand, trains: Callable[[], Awaitable[bool]]) -> None:
        """Serve the model of a demand, or tell why not. Raises RedisError."""
        self._loading = demand
        failure: Failure | None = None
        try:
            await self._parts.heartbeat.send()
            model = await self._loaded(demand, trains)
            if model is not None:
                self._models.append(model)
        except UNUSABLE as error:
            failure = _unusable(demand, str(error))
        except (VLLMFailed, VLLMUnavailable) as error:
            failed = error if isinstance(error, VLLMFailed) else VLLMFailed(str(error))
            await self._vllm_failed(failed)
            failure = _not_started(demand, self._worker, self._parts.record.error)
        self._loading = None
        if failure is not None:
            log.error("a model cannot be served", model=demand.model, reason=failure.message)
            await self._demands.fail(self._pool, demand, failure)
        await self._parts.heartbeat.send()

    async def _loaded(
        self, demand: ModelDemand, trains: Callable[[], Awaitable[bool]]
    ) -> ServedModel | None:
        """Load a model into vLLM. Return None if training came first."""
        parts = self._parts
        run = await parts.store.runs.get(demand.run)
        if run is None:
            raise FileNotFoundError(f"there is no run {demand.run} any more")
        # A template that ended a worker would end this one, too.
        check_noted(self._note(run.id))
        config = served_config(run, parts.settings.trust_remote_code, parts.settings.serving_only)
        files = await served_files(parts.volume, demand)
        try:
            return await self._started(demand, run, config, files, trains)
        finally:
            forget_converted(parts.volume, files.manifest)

    def _note(self, run: str) -> Path:
        return self._parts.settings.data / f"cache/templates/{run}.txt"

    async def _started(
        self,
        demand: ModelDemand,
        run: RunRecord,
        config: RLConfig,
        files: ServedFiles,
        trains: Callable[[], Awaitable[bool]],
    ) -> ServedModel | None:
        parts, (folder, manifest) = self._parts, files
        await asyncio.to_thread(check_folder, folder)
        trusted = config.model.trust_remote_code
        tokenizer = await asyncio.to_thread(load_tokenizer, folder, trusted)
        use_template(tokenizer, config.data)
        if manifest.kind == "adapter":
            return await self._started_adapter(demand, config, files, tokenizer, trains)
        await self._make_room()
        events = ServedEvents(run.id, self._worker, parts.store)
        # A supervised run names no options of vLLM, so any server of its architecture will do.
        served = None
        if run.kind != "rl":
            served = await asyncio.to_thread(parts.serving.alike, folder)
        if served is None:
            size = sum(file.bytes for file in manifest.files)
            served = await parts.serving.serve(config, folder, events, size, _unless(trains))
        if served is None:
            return None

        async def distrust(problem: str) -> None:
            log.error("weights are loaded once more", model=demand.model, problem=problem)

        follower = parts.follower(config, served, folder, events, lambda: None, distrust)
        await follower.pin(manifest, back=True)
        context = await parts.context(config, served[0], folder, tokenizer, follower, events)
        context.template_note = self._note(run.id)
        model = ServedModel(demand, context, parts.store)
        try:
            pinned = asyncio.create_task(follower.until_pinned())
            await asyncio.wait([pinned, *model.tasks], return_when=asyncio.FIRST_COMPLETED)
            model.check()
            await pinned
        except BaseException:
            await end([pinned])
            await model.end()
            raise
        log.info("model served", model=demand.model)
        return model

    async def _started_adapter(
        self,
        demand: ModelDemand,
        config: RLConfig,
        files: ServedFiles,
        tokenizer: TokenizerLike,
        trains: Callable[[], Awaitable[bool]],
    ) -> ServedModel | None:
        """Serve an adapter together with others of its base: each request names the folder of its
        adapter, and vLLM keeps the adapters that were used last."""
        parts, (folder, manifest) = self._parts, files
        more = {MAX_LORAS: ADAPTERS_AT_ONCE} if parts.settings.serving_only else {}
        served = None
        if all(model.is_adapter for model in self._models):
            served = await parts.serving.kept(config, folder, more)
        if served is not None:
            by_use = sorted(self._models, key=lambda model: model.idle_seconds, reverse=True)
            await self._end_models(by_use[: max(0, len(by_use) + 1 - MOST_ADAPTERS)])
        else:
            await self._make_room()
        events = ServedEvents(demand.run, self._worker, parts.store)
        served = served or await parts.serving.serve(
            config, folder, events, 0, _unless(trains), more
        )
        if served is None:
            return None
        follower = cast(WeightFollower, FixedAdapter(manifest))
        context = await parts.context(config, served[0], folder, tokenizer, follower, events)
        context.template_note = self._note(demand.run)
        context.adapter = str(parts.volume.path(demand.directory))
        await _probe(context)
        log.info("adapter served", model=demand.model, others=len(self._models))
        return ServedModel(demand, context, parts.store)

    # --- letting models go ----------------------------------------------------------------------

    async def _make_room(self) -> None:
        """Return once no model is served any more. Open calls get time to end."""
        for model in self._models:
            await model.calls.until_idle(SHARE_SECONDS - (time.monotonic() - model.began))
        leaving, self._models = self._models, []
        await self._parts.heartbeat.send()
        # A gateway may have read the last heartbeat, and send a call.
        await asyncio.sleep(2 * POLL_SECONDS if leaving else 0)
        for model in leaving:
            await model.calls.until_idle(DRAIN_SECONDS)
        await self._end_models(leaving)

    async def _release_idle(self) -> None:
        if self._models and all(model.idle_seconds > IDLE_SECONDS for model in self._models):
            log.info("models released", models=[model.demand.model for model in self._models])
            await self._end_models(self._models)
            await self._parts.serving.stop()

    async def _end_models(self, models: list[ServedModel]) -> None:
        self._models = [model for model in self._models if model not in models]
        for model in models:
            await model.end()
            self._answered += model.calls.answered
            self._tokens += model.calls.tokens
            await self._release_lease(model.demand)

    async def _release_lease(self, demand: ModelDemand | None) -> None:
        if demand is not None:
            # Otherwise it lapses by itself.
            with contextlib.suppress(RedisError, OSError):
                await self._demands.release(self._pool, demand.name)

    async def _keep_leases(self) -> None:
        while True:
            held = [*(model.demand for model in self._models), self._loading]
            names = [demand.name for demand in held if demand is not None]
            if names:
                await self._demands.keep(self._pool, self._worker, names)
            await asyncio.sleep(KEEP_SECONDS)


def _unless(trains: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    async def goes_on() -> bool:
        return not await trains()

    return goes_on


async def _probe(context: RunContext) -> None:
    """Have vLLM load the adapter. Raises RequestRefused, VLLMUnavailable."""
    params = {"max_tokens": 1, "detokenize": False, "logprobs": None}
    prompt = [context.eos[0] if context.eos else 0]
    async with aclosing(context.policy.stream(prompt, params, 0, context.adapter)) as deltas:
        async for _ in deltas:
            pass


async def _until(trains: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await trains():
            return
        await asyncio.sleep(POLL_SECONDS)


def _unusable(demand: ModelDemand, reason: str) -> Failure:
    return Failure(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        message=f"checkpoint {demand.model} cannot be served: {reason}. Ask for another checkpoint "
        f"of the run (`headrace checkpoints {demand.run}` lists them)",
        param="model",
        code="checkpoint_unusable",
    )


def _not_started(demand: ModelDemand, worker: str, reason: str) -> Failure:
    return Failure(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        message=f"worker {worker} could not load {demand.model}: {brief(reason)}",
        param="model",
        code="model_not_loaded",
    )
