"""Goes from run to run: serves the model of the pool's active run, works on it, takes the next run.

A run that cannot work fails by the rule of `work.failure_limit`. So does a run whose vLLM dies, or
serves other weights than it has loaded, again after its restart.
"""

import asyncio
import contextlib
import os
import random
import socket
import time

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars, bound_contextvars

from rollout.file_server import keep_serving, other_hosts
from rollout.heartbeat import Heartbeat
from rollout.policy.model_server import ModelServer
from rollout.rewards.client import RewardClient
from rollout.run_events import RunEvents
from rollout.run_setup import WorkerParts
from rollout.run_worker import RunWorker
from rollout.sessions.call_source import CallSource
from rollout.settings import RolloutSettings
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.model_files import (
    fetch_model,
    load_tokenizer,
)
from rollout.vllm.process.logs import brief
from rollout.vllm.process.server import VLLMFailed
from rollout.vllm.process.serving import Serving
from rollout.work.evaluator import Evaluator
from rollout.work.failure_limit import FailureLimit, RunCannotWork
from rollout.work.run_work import RunWork
from rollout.work.task_rows import Rows, task_rows
from rollout.work.task_source import TaskSource
from services.contracts.config import RLConfig
from services.contracts.config.episodes import own_episodes
from services.contracts.config.trust import parse_trusted
from services.contracts.records import RunRecord, WorkerRecord
from services.contracts.rows.rendering import use_template
from services.contracts.rows.template_limits import check_noted, noted
from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightManifest
from services.models import check_folder
from services.payloads import Payloads, place_of
from services.runtime.api_key import key_for, key_for_rewards
from services.runtime.gpus import described_gpus, gpu_count, installed_vllm
from services.runtime.logs import get_logger
from services.runtime.process import RESTARTS
from services.runtime.tasks import end
from services.runtime.tool_servers import tool_servers, usable
from services.store import Store
from services.volume import Volume

log = get_logger(__name__)

IDLE_SECONDS = 0.5


class WorkerSupervisor:
    def __init__(self, settings: RolloutSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        peers = other_hosts(settings, store)
        self._volume = Volume(settings.data, settings.gateway_url, key_for(settings), peers)
        self._payloads = Payloads(store, place_of(settings), settings.payload_file_bytes)
        self._rewards = RewardClient(settings.reward_url, lambda: key_for_rewards(settings))
        self._tool_servers = tool_servers(settings.mcp_servers)
        self._run_events: RunEvents | None = None
        self._limit = FailureLimit(settings.vllm_start_tries)
        self._redis_away = False
        name = settings.worker or f"{socket.gethostname()}-{os.urandom(3).hex()}"
        self.record = WorkerRecord(
            id=name,
            pool=settings.pool,
            evaluation_only=settings.evaluation_only,
            worker_class=settings.worker_class,
            serving_only=settings.serving_only,
            host=socket.gethostname(),
            pid=os.getpid(),
            state="idle",
            episodes=own_episodes(),
            tool_servers=sorted(usable(self._tool_servers)),
            gpus=gpu_count(),
            devices=described_gpus(),
            gpu_share=settings.vllm_gpu_memory_utilization,
            vllm_version=installed_vllm(),
            started=time.time(),
            peer_url=settings.peer_url,
            restarts=int(os.environ.get(RESTARTS, "0")),
        )
        self._serving = Serving(settings, self.record, store)
        self._heartbeat = Heartbeat(settings, store, self.record, self._serving)
        self._parts = WorkerParts(
            settings,
            store,
            self.record,
            self._volume,
            self._payloads,
            self._rewards,
            self._tool_servers,
            self._serving,
            self._heartbeat,
        )
        self._models = ModelServer(self._parts)
        self._run_worker: RunWorker | None = None
        """The work on the present run."""

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Then release all leases, stop vLLM and remove the worker's
        record."""
        heart = asyncio.create_task(self._heartbeat.run(), name="heartbeat")
        work = asyncio.create_task(self._runs(stop), name="runs")
        serving = asyncio.create_task(keep_serving(self._settings), name="peers")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            # The worker loop ends by itself and releases its leases. A start of vLLM has to be
            # cancelled.
            if self._heartbeat.worker is None and not work.done():
                await end([work])
            else:
                await work
        finally:
            await end([heart, work, stopped, serving])
            if self.record.run and self._run_events:
                bind_contextvars(run=self.record.run)
                await self._run_events.state("left", "it was told to stop")
            await self._serving.stop()
            await self._rewards.close()
            with contextlib.suppress(RedisError, OSError):
                await self._store.workers.remove(self.record.pool, self.record.id)

    async def _runs(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._next_run(stop)

    async def _next_run(self, stop: asyncio.Event) -> None:
        try:
            if await self._may_serve():
                await self._serve_models(stop)
                return
            active = await self._active()
            self._note_redis(None)
        except (RedisError, OSError) as error:
            self._note_redis(error)
            active = None
        except SchemaMismatch as error:
            # A newer learner wrote the record: this worker is at fault, and the run is not.
            if self.record.error != str(error):
                log.error("nothing can be worked on", reason=str(error))
            self.record.state, self.record.error = "unhealthy", str(error)
            await _wait(stop, IDLE_SECONDS)
            return
        if active is None:
            self.record.state, self.record.run = "idle", None
            if not self._redis_away:
                self.record.error = ""
            await _wait(stop, IDLE_SECONDS * random.uniform(0.8, 1.2))
            return
        run, manifest = active
        if self.record.run != run.id:
            self.record.error = ""
        self.record.run = run.id
        if self._run_events is None or self._run_events.run != run.id:
            self._run_events = RunEvents(run.id, self.record.id, self._store)
            self._limit = FailureLimit(self._settings.vllm_start_tries)
        with bound_contextvars(run=run.id):
            await self._attend(run, manifest, self._run_events, stop)

    # --- finished runs --------------------------------------------------------------------------

    async def _may_serve(self) -> bool:
        """Whether no run of the pool has work for this worker, now or soon. Raises RedisError."""
        if self._settings.serving_only:
            return True
        run = await self._store.runs.active(self._settings.pool)
        if run is None or run.damage or run.state.ending:
            return True
        if run.kind == "rl" or not self.record.devices:
            # On a CPU an answer would take cores from a learner.
            return False
        learner = await self._store.pools.devices(self._settings.pool)
        trains = {gpu.uuid for gpu in learner.gpus} if learner else set()
        return bool(trains) and not any(gpu.uuid in trains for gpu in self.record.devices)

    async def _serve_models(self, stop: asyncio.Event) -> None:
        """Serve models of finished runs until a run has work for this worker. Raises RedisError."""

        async def trains() -> bool:
            return not await self._may_serve()

        self.record.run = None
        self._note_redis(None)
        await self._models.serve(trains, stop)

    # --- runs -----------------------------------------------------------------------------------

    async def _attend(
        self, run: RunRecord, manifest: WeightManifest, run_events: RunEvents, stop: asyncio.Event
    ) -> None:
        try:
            note = self._settings.data / f"cache/templates/{run.id}.txt"
            check_noted(note)
            try:
                with noted(note):
                    await self._work(run, manifest, run_events, stop)
            except VLLMUnavailable:
                # If vLLM has ended, its log has the cause, and the refused connection follows.
                self._serving.check()
                raise
            finally:
                # Otherwise heartbeats would repeat what the worker did before it failed.
                self._heartbeat.worker = self._run_worker = None
            self._limit.failures = 0
        except VLLMFailed as error:
            reason = await self._serving.explained(error)
            await self._serving.stop()
            self.record.restarts += 1
            self._limit.vllm_failed(reason)
            await self._failed(run, run_events, reason)
        except (RunCannotWork, ValueError) as error:
            self._limit.run_failed(str(error))
            await self._failed(run, run_events, str(error))
        except (RedisError, OSError) as error:
            if self.record.error != str(error):
                log.warning("work interrupted", error=str(error))
            self.record.error = str(error)
            await _wait(stop, random.uniform(0.5, 2.0))

    def _note_redis(self, error: Exception | None) -> None:
        """Log once that Redis is unreachable, and once that it is back."""
        if error is not None and not self._redis_away:
            log.warning("Redis is away, trying again until it is back", error=str(error))
        elif error is None and self._redis_away:
            log.info("Redis is back")
        self._redis_away = error is not None
        if error is not None:
            self.record.error = f"Redis: {error}"

    async def _active(self) -> tuple[RunRecord, WeightManifest] | None:
        """Return the pool's active run, if it samples and has published weights."""
        run = await self._store.runs.active(self._settings.pool)
        # The learner fails a run whose record is damaged.
        if run is None or run.damage or run.state.ending:
            return None
        manifest = await self._store.weights.newest(run.id) if run.kind == "rl" else None
        if manifest is None:
            await self._serving.free_memory_for(run)
            return None
        return run, manifest

    async def _work(
        self, run: RunRecord, manifest: WeightManifest, run_events: RunEvents, stop: asyncio.Event
    ) -> None:
        config = parse_trusted(run.config, self._settings.trust_remote_code)
        if not isinstance(config, RLConfig):
            raise RunCannotWork(f"run {run.id} is of kind {run.kind}: it samples nothing")
        await run_events.state("joined", f"on {self.record.host}, process {self.record.pid}")
        model = await fetch_model(self._volume, manifest.model)
        # Checked before vLLM reads the folder.
        await asyncio.to_thread(check_folder, model)
        # Importing transformers takes seconds; vLLM starts meanwhile.
        loading = asyncio.create_task(
            asyncio.to_thread(load_tokenizer, model, config.model.trust_remote_code)
        )
        try:
            size = sum(file.bytes for file in manifest.files)
            served = await self._serving.serve(config, model, run_events, size)
            if served is None:
                return
            tokenizer = await loading
            use_template(tokenizer, config.data)
        finally:
            loading.cancel()
        wake = asyncio.Event()

        async def distrust(problem: str) -> None:
            if self._run_worker is not None:
                await self._run_worker.release_groups()
            again = f"worker {self.record.id} loads its weights once more: {problem}"
            await run_events.once(problem, again)

        follower = self._parts.follower(config, served, model, run_events, wake.set, distrust)
        context = await self._parts.context(
            config, served[0], model, tokenizer, follower, run_events
        )
        rows = task_rows(run, context, self._store, self._volume)
        work = RunWork(context, self._store, rows, run_events, self._limit, wake)
        evaluator = Evaluator(work, lambda dataset: Rows(self._store, self._volume, dataset))
        plays = context.episode is None and not self._settings.evaluation_only
        source = CallSource(work) if plays else TaskSource(work, evaluator)
        worker = RunWorker(work, source, evaluator, self._serving.check)
        self._heartbeat.worker = self._run_worker = worker
        log.info("working")
        await worker.work(stop)

    # --- failures -----------------------------------------------------------------------------

    async def _failed(self, run: RunRecord, run_events: RunEvents, reason: str) -> None:
        """Fail the run if it has reached the limit of failures. Otherwise wait before the next
        try."""
        self.record.state, self.record.error = "unhealthy", reason
        log.error("run cannot be worked on", reason=reason)
        try:
            if self._limit.reason is not None and not await self._host_at_fault(run):
                await self._store.runs.fail(run.id, reason)
                self._limit.failures = 0
                return
        except (RedisError, OSError) as error:
            # The failure repeats when Redis is back.
            self._note_redis(error)
        again = f"worker {self.record.id} tries again after a failure: {brief(reason)}"
        await run_events.once("failure", again)
        await asyncio.sleep(random.uniform(0.5, 1.0) * min(30.0, 2.0**self._limit.failures))

    async def _host_at_fault(self, run: RunRecord) -> bool:
        """Whether the fault is this host's: another worker is healthy on this run and, unless vLLM
        failed, some worker has finished a group. A worker that only lives proves nothing."""
        workers = await self._store.workers.list(self._settings.pool)
        if not any(
            worker.id != self.record.id and worker.run == run.id and worker.state != "unhealthy"
            for worker in workers
        ):
            return False
        return self._limit.host_may_be_at_fault or await self._store.tasks.any_finished(run.id)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
