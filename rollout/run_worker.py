"""The worker loop: one run on one vLLM server, from the first lease to the run's end.

A group's way: lease (work/task_source.py) -> the task's row (work/task_rows.py) -> sample
(work/group.py, through episodes and vllm/client) and score (work/scoring.py, rewards/client.py) ->
assemble (work/group_assembly.py) -> complete (work/hand_in.py). work/group_tasks.py has one asyncio
task for each group. In a run of agents, sessions/call_source.py takes calls instead of tasks.

Many groups are in flight, and a finished group frees its slot at once. The worker holds no state
that outlives a lease: if it dies, its tasks are leased again. It leases nothing while its weights
may be wrong, and renews leases only while vLLM samples tokens. On SIGTERM it releases its leases
with what it has sampled (work/leases.py, work/partials.py). Admission bounds staleness before
sampling (store/lua/work/lease.lua); the learner requeues groups that became too stale
(learner/coordinate/batch_selection.py).
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from headrace.wording import counted
from rollout.policy.call_loop import PolicyCallLoop
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.progress import TokenProgress
from rollout.vllm.process.server import VLLMFailed
from rollout.vllm.weights.weight_follower import WeightFollower
from rollout.work.evaluator import Evaluator
from rollout.work.failure_limit import RunCannotWork
from rollout.work.leases import DRAIN_SECONDS
from rollout.work.run_work import RunWork, WorkSource
from services.contracts.records import WorkerRecord
from services.runtime.logs import get_logger
from services.runtime.tasks import end

log = get_logger(__name__)

POLL_SECONDS = 0.25
"""Seconds until a refused lease is requested again. The worker's own weight update usually opens
admission, and wakes the loop at once."""
LEARNER_REFUSALS = ("admission", "bytes")


class RunWorker:
    """Works on one run until the run ends, `stop` is set, or vLLM has to be restarted."""

    def __init__(
        self,
        work: RunWork,
        source: WorkSource,
        evaluator: Evaluator,
        check_server: Callable[[], None],
    ) -> None:
        self._work, self._source, self._evaluator = work, source, evaluator
        self._context, self._status, self._leases = work.context, work.status, work.leases
        self._check_server = check_server
        self._progress = TokenProgress(limit=work.context.config.rollout.lease_seconds)
        self._policy_calls = PolicyCallLoop(work.context, work.store)

    @property
    def follower(self) -> WeightFollower:
        return self._context.follower

    def describe(self, record: WorkerRecord) -> None:
        follower, status = self.follower, self._status
        record.state = status.state
        record.version = follower.live.version if follower.live else None
        record.lineage = follower.live.lineage if follower.live else None
        record.files = follower.files
        self._source.describe(record)
        record.evaluation_rows = len(self._evaluator)
        record.policy_calls = len(self._policy_calls)
        record.policy_answers = self._policy_calls.answered
        record.policy_tokens = self._policy_calls.tokens
        record.oldest = self._leases.oldest
        record.tokens_per_second = round(status.rate.per_second, 1)
        record.tokens_total = status.tokens
        record.admission_wait_seconds = round(status.admission_wait, 3)
        record.update_seconds = follower.update_seconds
        record.pause_seconds = follower.pause_seconds
        record.canary_gap = follower.canary.gap
        record.canary_seconds = follower.canary.seconds
        record.error = follower.error or status.error

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
            *(asyncio.create_task(loop) for loop in self._source.loops()),
        ]
        if self._context.config.evaluation is not None:
            loops.append(asyncio.create_task(self._evaluator.run(), name="evaluate"))
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                self._status.state = "stopping"
                self._work.closing = True
                self._work.wake.set()
                await self._evaluator.release_all()
                await self._leases.release_on_sigterm(leasing)
                await self._tell_left()
        finally:
            # Not cancelled at once: a lease that is granted to a cancelled call has no holder.
            self._work.closing = True
            self._work.wake.set()
            await asyncio.wait([leasing], timeout=DRAIN_SECONDS)
            await end(loops)
            # A lease that is not released lapses. The reason why the work ended must survive.
            with contextlib.suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._release_all()
        for task in done:
            task.result()

    async def _tell_left(self) -> None:
        left = self._work.tasks.partials
        if left.groups:
            groups, tokens = counted(left.groups, "group"), counted(left.tokens, "sampled token")
            detail = f"it was told to stop; other workers continue {groups} with {tokens}"
            await self._work.run_events.state("left", detail)

    async def release_groups(self) -> None:
        """Stop and release all groups and evaluation rows: wrong weights may have sampled their
        tokens."""
        await self._source.release_sampling()
        await self._evaluator.release_all()

    async def _release_all(self) -> None:
        await self._source.release_all()
        await self._evaluator.release_all()

    # --- taking work --------------------------------------------------------------------------

    async def _lease(self, stop: asyncio.Event) -> None:
        while not (stop.is_set() or self._work.closing):
            self._work.wake.clear()
            try:
                refusal = await self._source.take()
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
                    await self._work.wake.wait()
            except TimeoutError:
                if refusal == "full":
                    await self._check_unfinished()
            if refusal in LEARNER_REFUSALS:
                self._status.admission_wait += time.monotonic() - started

    def _describe(self, refusal: str) -> None:
        if refusal == "weights":
            broken = self.follower.error
            waiting = "sleeping" if self.follower.sleeping else "updating"
            self._status.state = "unhealthy" if broken else waiting
        elif self._source.busy:
            self._status.state = "generating"
        elif len(self._evaluator) or refusal == "evaluation":
            self._status.state = "evaluating"
        else:
            waits = refusal in LEARNER_REFUSALS
            self._status.state = "waiting_admission" if waits else "idle"

    async def _ended(self) -> bool:
        return (await self._work.store.runs.standing(self._context.run))[0]

    async def _check_unfinished(self) -> None:
        """Take more work if samples of groups in vLLM have ended."""
        with contextlib.suppress(VLLMUnavailable):
            self._source.widen(await self._context.policy.unfinished())

    # --- leases in time -----------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew leases while vLLM samples tokens or groups are being scored. Raises VLLMFailed if
        the server has died or hangs, and RunCannotWork if nothing works."""
        ttl = self._context.config.rollout.lease_seconds
        pause = min(2.0, ttl / 5)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._work.check.wait()
            self._work.check.clear()
            self._check_server()
            if self._work.limit.reason:
                raise RunCannotWork(self._work.limit.reason)
            moving = await self._moving(pause)
            if self._progress.stalled(time.monotonic()):
                raise VLLMFailed(f"vLLM has sampled nothing for {ttl:g} s with work to do")
            try:
                await self._source.renew(moving)
                await self._evaluator.renew(moving)
            except (RedisError, OSError) as error:
                self._status.error = f"Redis: {error}"

    async def _moving(self, within: float) -> bool:
        # Requests in vLLM. Slow tools of an episode do not count.
        generating = self._context.policy.sampling
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
        self._source.widen(unfinished)
        return self._progress.observe(now, tokens, generating, self.follower.updating)
