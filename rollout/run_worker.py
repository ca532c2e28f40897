"""The worker loop: one run on one vLLM server, from the first lease to the run's end.

A group's way: lease (work/leases.py) -> the task's row (work/task_rows.py) -> sample and score
(work/group.py, through episodes, vllm/client and rewards/client.py) -> assemble
(work/assembly.py) -> complete (work/hand_in.py). work/group_tasks.py has one asyncio task for each
group.

Many groups are in flight, and a finished group frees its slot at once. The worker holds no state
that outlives a lease: if it dies, its tasks are leased again. It leases nothing while its weights
may be wrong, and renews leases only while vLLM samples tokens. On SIGTERM it releases its leases
(work/leases.py). Admission bounds staleness before sampling (store/lua/work/lease.lua); the learner
requeues groups that became too stale (learner/coordinate/batch_selection.py).
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from rollout.policy.call_loop import PolicyCallLoop
from rollout.run_events import RunEvents
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.progress import TokenProgress
from rollout.vllm.process.server import VLLMFailed
from rollout.vllm.weights.weight_follower import WeightFollower
from rollout.work.capacity import reserve_bytes, slots, to_lease, widened
from rollout.work.context import RunContext
from rollout.work.evaluation import Evaluator
from rollout.work.evaluation_share import evaluation_rows, training_groups
from rollout.work.failure_limit import FailureLimit, RunCannotWork
from rollout.work.group_tasks import GroupTasks, WorkStatus
from rollout.work.leases import DRAIN_SECONDS, Leases
from rollout.work.task_rows import Rows, TaskRows
from services.contracts.records import WorkerRecord
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store

log = get_logger(__name__)

POLL_SECONDS = 0.25
"""Seconds until a refused lease is requested again. The worker's own weight update usually opens
admission, and wakes the loop at once."""
LEARNER_REFUSALS = ("admission", "bytes")


class RunWorker:
    """Works on one run until the run ends, `stop` is set, or vLLM has to be restarted."""

    def __init__(
        self,
        context: RunContext,
        store: Store,
        rows: TaskRows,
        rows_of: Callable[[str], Rows],
        run_events: RunEvents,
        limit: FailureLimit,
        wake: asyncio.Event,
        check_server: Callable[[], None],
    ) -> None:
        self._context = context
        self._store = store
        self._rows = rows
        self._run_events = run_events
        self._wake = wake
        self._check_server = check_server
        config = context.config
        datasets = config.datasets.values()
        # Grows while groups fill fewer sequences than they have samples.
        self._group_limit = self._slots()
        largest = reserve_bytes(
            config.algorithm.samples_per_prompt,
            config.max_tokens,
            context.context,
            max(len(dataset.rewards) for dataset in datasets),
            max(getattr(dataset.rollout.episode, "max_calls", 0) for dataset in datasets),
            config.sampling.top_k,
            context.routing_bytes,
            context.teacher is not None,
        )
        # Larger groups do not go into Redis, and their references hardly count.
        self._reserve = min(largest, context.payloads.above)
        self._ttl = config.rollout.lease_seconds
        self._leases = Leases(context.run, store, self._ttl, wake.set)
        self._progress = TokenProgress(limit=self._ttl)
        # Wakes `_renew`, which checks whether work can go on.
        self._look = asyncio.Event()
        self._closing = False
        self._limit = limit
        limit.start()
        self._status = WorkStatus()
        self._tasks = GroupTasks(
            rows, self._leases, run_events, limit, self._status, self._look.set
        )
        self._evaluator = Evaluator(
            context,
            store,
            rows_of,
            run_events,
            self._ttl,
            self._evaluation_rows,
            lambda: self._leases.generating,
            lambda: not (self._closing or self._tasks.paused),
            wake.set,
        )

        self._policy_calls = PolicyCallLoop(context, store)

    @property
    def follower(self) -> WeightFollower:
        """The loop that keeps the weights current."""
        return self._context.follower

    def describe(self, record: WorkerRecord) -> None:
        """Write this worker's leases and state into its heartbeat `record`."""
        live, status, leases = self.follower.live, self._status, self._leases
        record.state = status.state
        record.version = live.version if live else None
        record.lineage = live.lineage if live else None
        record.files = self.follower.files
        record.groups_in_flight = len(leases)
        record.scoring = len(leases) - leases.generating
        record.evaluation_rows = len(self._evaluator)
        record.policy_calls = len(self._policy_calls)
        record.policy_answers = self._policy_calls.answered
        record.policy_tokens = self._policy_calls.tokens
        record.oldest = leases.oldest
        record.tokens_per_second = round(status.rate.per_second, 1)
        record.tokens_total = status.tokens
        record.admission_wait_seconds = round(status.admission_wait, 3)
        record.update_seconds = self.follower.timings.update_seconds
        record.pause_seconds = self.follower.timings.pause_seconds
        record.canary_gap = self.follower.canary.gap
        record.canary_seconds = self.follower.canary.seconds
        record.error = self.follower.error or status.error

    async def work(self, stop: asyncio.Event) -> None:
        """Lease, sample, score and complete until the run has ended or `stop` is set.

        Raises VLLMFailed (restart the server and continue) and RunCannotWork (fail the run). The
        worker holds no lease when this returns or raises.
        """
        leasing = asyncio.create_task(self._lease(stop), name="lease")
        loops = [
            asyncio.create_task(self.follower.follow(), name="follow"),
            asyncio.create_task(self._renew(), name="renew"),
            asyncio.create_task(stop.wait(), name="stop"),
            asyncio.create_task(self._policy_calls.run(), name="policy calls"),
            leasing,
            *self._listening(),
        ]
        if self._context.config.evaluation is not None:
            loops.append(asyncio.create_task(self._evaluator.run(), name="evaluate"))
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                self._status.state = "stopping"
                self._closing = True
                self._wake.set()
                await self._evaluator.release_all()
                await self._leases.release_at_stop(leasing)
        finally:
            # Not cancelled at once: a lease that is granted to a cancelled call has no holder.
            self._closing = True
            self._wake.set()
            await asyncio.wait([leasing], timeout=DRAIN_SECONDS)
            await end(loops)
            # A lease that is not released lapses. The reason why the work ended must survive.
            with contextlib.suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._release_all()
        for task in done:
            task.result()

    async def release_groups(self) -> None:
        """Stop and release all groups and evaluation rows: wrong weights may have sampled their
        tokens."""
        await self._leases.release_all()
        await self._evaluator.release_all()

    async def _release_all(self) -> None:
        """Release everything that this worker holds."""
        await self._leases.release_all()
        await self._evaluator.release_all()

    def _listening(self) -> list[asyncio.Task[None]]:
        """Return more loops that `work` runs."""
        return []

    # --- leasing ------------------------------------------------------------------------------

    async def _lease(self, stop: asyncio.Event) -> None:
        while not (stop.is_set() or self._closing):
            self._wake.clear()
            try:
                refusal = await self._take()
                # The weights of a run that is over may be deleted, so they would never load.
                if refusal in ("state", "weights") and await self._ended():
                    return
            except (RedisError, OSError) as error:
                # VLLMUnavailable is an OSError too. `_renew` finds out whether the server is dead.
                refusal = "unavailable"
                if self._status.error != str(error):
                    log.warning("leasing waits", error=str(error))
                self._status.error = str(error)
                await asyncio.sleep(random.uniform(0.2, 2.0))
            self._describe(refusal)
            started = time.monotonic()
            try:
                async with asyncio.timeout(POLL_SECONDS * random.uniform(0.8, 1.2)):
                    await self._wake.wait()
            except TimeoutError:
                if refusal == "full":
                    await self._check_unfinished()
            if refusal in LEARNER_REFUSALS:
                self._status.admission_wait += time.monotonic() - started

    async def _take(self) -> str:
        """Lease tasks. Return why no more were granted: '' (all were), `full`, `weights`,
        `unavailable`, or the store's refusal."""
        live = self.follower.live
        if live is None or not self.follower.healthy or self.follower.sleeping:
            return "weights"
        if self._tasks.paused:
            return "unavailable"
        if self._context.evaluation_only:
            # This worker leases no task, so only this answer makes it check whether the run has
            # ended.
            return "state"
        if self._evaluator.clearing:
            return "evaluation"
        generating = self._leases.generating
        count = to_lease(self._training_limit(), generating, len(self._leases) - generating)
        if count == 0:
            return "full"
        granted = await self._store.prompts.lease(
            self._context.run,
            worker=self._context.worker,
            lineage=live.lineage,
            version=live.version,
            count=count,
            ttl=self._ttl,
            reserve_bytes=self._reserve,
        )
        if not self.follower.healthy:
            # The weights became doubtful after the request: tokens could carry a wrong version.
            await self._leases.release([lease.attempt for lease in granted.leases])
            return "weights"
        for lease in granted.leases:
            self._tasks.begin(lease, live)
        return granted.refusal

    def _describe(self, refusal: str) -> None:
        if refusal == "weights":
            broken = self.follower.error
            waiting = "sleeping" if self.follower.sleeping else "updating"
            self._status.state = "unhealthy" if broken else waiting
        elif self._busy:
            self._status.state = "generating"
        elif len(self._evaluator) or refusal == "evaluation":
            self._status.state = "evaluating"
        else:
            waits = refusal in LEARNER_REFUSALS
            self._status.state = "waiting_admission" if waits else "idle"

    @property
    def _busy(self) -> bool:
        """Whether the worker holds any work."""
        return len(self._leases) > 0

    async def _ended(self) -> bool:
        """Whether this worker is done with the run."""
        return (await self._store.runs.standing(self._context.run))[0]

    # --- leases in time -----------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew leases while vLLM samples tokens or groups are being scored. Raises VLLMFailed if
        the server has died or hangs, and RunCannotWork if nothing works."""
        pause = min(2.0, self._ttl / 5)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()
            self._look.clear()
            self._check_server()
            if self._limit.reason:
                raise RunCannotWork(self._limit.reason)
            moving = await self._moving(pause)
            if self._progress.stalled(time.monotonic()):
                raise VLLMFailed(f"vLLM has sampled nothing for {self._ttl:g} s with work to do")
            try:
                await self._renew_held(moving)
            except (RedisError, OSError) as error:
                self._status.error = f"Redis: {error}"

    async def _renew_held(self, moving: bool) -> None:
        """Renew what is held. Work in vLLM is renewed only if vLLM is `moving`. Raises
        RedisError."""
        await self._leases.renew(moving)
        await self._evaluator.renew(moving)

    @property
    def _generating(self) -> int:
        """Requests in vLLM, for judging its progress. Slow tools of an episode do not count."""
        return self._context.policy.sampling

    async def _moving(self, within: float) -> bool:
        generating = self._generating
        try:
            async with asyncio.timeout(within):
                tokens, unfinished = await self._context.policy.counters()
        except (VLLMUnavailable, TimeoutError):
            now = time.monotonic()
            return self._progress.observe(now, self._progress.tokens, max(1, generating), False)
        # Read after the answer: this process may have been stopped while it waited.
        now = time.monotonic()
        self._status.rate.observe(now, tokens)
        self._status.tokens = tokens
        self._widen(unfinished)
        return self._progress.observe(now, tokens, generating, self.follower.updating)

    def _slots(self) -> int:
        config = self._context.config
        return slots(
            self._context.sequences.at_once,
            config.algorithm.samples_generated,
            config.rollout.groups_in_flight,
        )

    def _evaluation_rows(self, samples: int) -> int:
        config = self._context.config
        used = self._leases.generating * config.algorithm.samples_generated
        return evaluation_rows(self._completions, used, self._evaluation_share, samples)

    def _training_limit(self) -> int:
        samples, used = self._context.config.algorithm.samples_generated, self._evaluator.samples
        if not used:
            return self._group_limit
        limit = training_groups(self._completions, used, self._evaluation_share, samples)
        return min(self._group_limit, limit)

    @property
    def _completions(self) -> int:
        return self._slots() * self._context.config.algorithm.samples_generated

    @property
    def _evaluation_share(self) -> float | None:
        evaluation = self._context.config.evaluation
        return evaluation.share if evaluation else None

    async def _check_unfinished(self) -> None:
        """Raise the group limit if samples of groups in vLLM have ended."""
        with contextlib.suppress(VLLMUnavailable):
            self._widen(await self._context.policy.unfinished())

    def _widen(self, unfinished: int) -> None:
        config = self._context.config
        if config.rollout.groups_in_flight is None:
            previous, samples = self._group_limit, config.algorithm.samples_generated
            at_once = self._context.sequences.at_once
            self._group_limit = widened(
                self._slots(),
                self._leases.generating,
                unfinished,
                at_once,
                samples,
            )
            if self._group_limit > previous:
                self._wake.set()
