"""From run to run: serve the model of the pool's active run, work on it, go on to the next.

A vLLM that cannot start fails the run with the end of its log, and a run of which nothing can be
sampled fails, too; unless another worker of the pool manages: then the fault is this host's.
"""

import asyncio
import contextlib
import os
import random
import socket
import time

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars, bound_contextvars

from rollout.episodes import UnusableEpisode, load_episode
from rollout.follower import Follower
from rollout.groups import RunContext
from rollout.last_words import brief
from rollout.model_folder import fetch_model
from rollout.prompts import eos_token_ids, load_tokenizer, vocabulary
from rollout.routing import bytes_per_token
from rollout.rows import MissingDataset, Rows
from rollout.scoring import RewardClient
from rollout.serving import Serving
from rollout.settings import RolloutSettings
from rollout.tasks import end
from rollout.telling import Telling
from rollout.vllm_server import VLLMFailed
from rollout.worker import RunBroken, RunWorker
from services.api_key import key_for
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.episodes import own_episodes
from services.contracts.records import RunRecord, WorkerRecord
from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightManifest
from services.gpus import installed_device
from services.logs import get_logger
from services.process import RESTARTS
from services.store import Store
from services.volume import Volume

log = get_logger(__name__)

HEARTBEAT_SECONDS = 1.0
IDLE_SECONDS = 0.5


class Supervisor:
    """One rollout process."""

    def __init__(self, settings: RolloutSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._volume = Volume(settings.data, settings.gateway_url, key_for(settings))
        self._rewards = RewardClient(settings.reward_url)
        self._worker: RunWorker | None = None
        self._telling: Telling | None = None
        self._failures = 0
        self._redis_away = False
        name = settings.worker or f"{socket.gethostname()}-{os.urandom(3).hex()}"
        self.record = WorkerRecord(
            id=name,
            pool=settings.pool,
            host=socket.gethostname(),
            pid=os.getpid(),
            state="idle",
            episodes=own_episodes(),
            started=time.time(),
            restarts=int(os.environ.get(RESTARTS, "0")),
        )
        self._serving = Serving(settings, self.record, store)

    async def serve(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Leaves no lease, no vLLM and no worker record behind."""
        heart = asyncio.create_task(self._beat(), name="heartbeat")
        work = asyncio.create_task(self._runs(stop), name="runs")
        told = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            # A worker at work ends by itself and gives its leases back; a start of vLLM would not.
            if self._worker is None and not work.done():
                await end([work])
            else:
                await work
        finally:
            await end([heart, work, told])
            if self.record.run and self._telling:
                bind_contextvars(run=self.record.run)
                await self._telling.state("left", "it was told to stop")
            await self._serving.stop()
            await self._rewards.close()
            with contextlib.suppress(RedisError, OSError):
                await self._store.workers.remove(self.record.pool, self.record.id)

    async def _runs(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._once(stop)

    async def _once(self, stop: asyncio.Event) -> None:
        try:
            found = await self._active()
            self._redis_answers(None)
        except (RedisError, OSError) as error:
            self._redis_answers(error)
            found = None
        except SchemaMismatch as error:
            # Of a newer learner: it is this worker that is wrong, and not the run.
            if self.record.error != str(error):
                log.error("nothing can be worked on", reason=str(error))
            self.record.state, self.record.error = "unhealthy", str(error)
            await _wait(stop, IDLE_SECONDS)
            return
        if found is None:
            self.record.state, self.record.run = "idle", None
            await _wait(stop, IDLE_SECONDS * random.uniform(0.8, 1.2))
            return
        run, manifest = found
        if self.record.run != run.id:
            self.record.error = ""
        self.record.run = run.id
        if self._telling is None or self._telling.run != run.id:
            self._telling = Telling(run.id, self.record.id, self._store)
        with bound_contextvars(run=run.id):
            await self._attend(run, manifest, self._telling, stop)

    async def _attend(
        self, run: RunRecord, manifest: WeightManifest, telling: Telling, stop: asyncio.Event
    ) -> None:
        """Work on the run, and deal with what ends that."""
        try:
            await self._work(run, manifest, telling, stop)
            self._failures = 0
        except VLLMFailed as error:
            await self._serving.stop()
            worked = self._worker is not None and self._worker.tally.groups > 0
            self._failures = 1 if worked else self._failures + 1
            self.record.restarts += 1
            await self._broken(run, telling, str(error), certain=False)
        except (RunBroken, UnusableEpisode, MissingDataset, ValueError) as error:
            self._failures += 1
            await self._broken(run, telling, str(error), certain=True)
        except (RedisError, OSError) as error:
            if self.record.error != str(error):
                log.warning("work interrupted", error=str(error))
            self.record.error = str(error)
            await _wait(stop, random.uniform(0.5, 2.0))
        finally:
            self._worker = None

    def _redis_answers(self, error: Exception | None) -> None:
        """Say once that Redis has gone, and once that it is back."""
        if error is not None and not self._redis_away:
            log.warning("Redis is away, trying again until it is back", error=str(error))
        elif error is None and self._redis_away:
            log.info("Redis is back")
        self._redis_away = error is not None
        if error is not None:
            self.record.error = f"Redis: {error}"

    async def _active(self) -> tuple[RunRecord, WeightManifest] | None:
        """The pool's active run once it has published weights, if it is one that samples."""
        run = await self._store.runs.active(self._settings.pool)
        if run is None or run.kind != "rl" or run.state.final or run.cancel_requested:
            return None
        manifest = await self._store.weights.newest(run.id)
        return None if manifest is None else (run, manifest)

    async def _work(
        self, run: RunRecord, manifest: WeightManifest, telling: Telling, stop: asyncio.Event
    ) -> None:
        config = parse_config(run.config)
        if not isinstance(config, RLConfig):
            raise RunBroken(f"run {run.id} is of kind {run.kind}: there is nothing to sample")
        await telling.state("joined", f"on {self.record.host}, process {self.record.pid}")
        model = await fetch_model(self._volume, manifest.model)
        # Importing transformers takes seconds, which the start of vLLM hides.
        loading = asyncio.create_task(
            asyncio.to_thread(load_tokenizer, model, config.model.trust_remote_code)
        )
        try:
            policy, server = await self._serving.serve(config, model, telling)
            tokenizer = await loading
        finally:
            loading.cancel()
        wake = asyncio.Event()
        mode = config.rollout.update_mode
        follower = Follower(run.id, self._store, self._volume, policy, mode, wake.set, self._say)
        context = RunContext(
            run=run.id,
            worker=self.record.id,
            config=config,
            policy=policy,
            follower=follower,
            rewards=self._rewards,
            tokenizer=tokenizer,
            episode=load_episode(config.rollout.episode, tokenizer),
            eos=eos_token_ids(model, tokenizer),
            context=await policy.context_length(),
            vocabulary=vocabulary(model) if installed_device() == "cpu" else None,
            routing_bytes=bytes_per_token(model) if config.algorithm.router.replay else 0,
        )
        self._worker = RunWorker(
            context,
            self._store,
            Rows(self._store, self._volume, config.data.dataset),
            Rows(self._store, self._volume, config.evaluation.dataset)
            if config.evaluation
            else None,
            telling,
            wake,
            server.check,
        )
        log.info("working")
        await self._worker.work(stop)

    # --- failures -----------------------------------------------------------------------------

    async def _broken(self, run: RunRecord, telling: Telling, reason: str, certain: bool) -> None:
        """Note a failure; fail the run where it is its own fault, or seems so."""
        self.record.state, self.record.error = "unhealthy", reason
        log.error("run cannot be worked on", reason=reason)
        try:
            hopeless = certain or self._failures >= self._settings.vllm_start_tries
            if hopeless and await self._others_work(run):
                # Alive is not enough where no worker may manage: that something was finished is.
                hopeless = certain and not await self._store.prompts.any_finished(run.id)
            if hopeless:
                await self._store.runs.fail(run.id, reason)
                self._failures = 0
        except (RedisError, OSError) as error:
            # What broke the run is there still when Redis is back, and is noted then.
            self._redis_answers(error)
            hopeless = False
        if not hopeless:
            again = f"worker {self.record.id} tries again after a failure: {brief(reason)}"
            await telling.once("failure", again)
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(30.0, 2.0**self._failures))

    async def _others_work(self, run: RunRecord) -> bool:
        """Whether another worker of the pool is healthy on this run."""
        return any(
            other.id != self.record.id and other.run == run.id and other.state != "unhealthy"
            for other in await self._store.workers.list(self._settings.pool)
        )

    # --- heartbeat ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(RedisError, OSError):
                await self._say()
                if self._settings.alive_file is not None:
                    self._settings.alive_file.touch()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _say(self) -> None:
        """A heartbeat now. Raises RedisError."""
        self._refresh()
        await self._store.workers.heartbeat(self.record)

    def _refresh(self) -> None:
        record, worker = self.record, self._worker
        record.heartbeat = time.time()
        if worker is not None:
            worker.describe(record)
            return
        record.groups_in_flight = record.scoring = record.evaluation_rows = 0
        record.tokens_per_second, record.oldest = 0.0, None
        record.version = record.lineage = None
        record.files = []


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
