"""Leases tasks of a dataset for a worker, as many as vLLM has slots for."""

from collections.abc import Coroutine
from typing import Any

from rollout.work.capacity import share_of, to_lease, widened
from rollout.work.evaluator import Evaluator
from rollout.work.run_work import RunWork
from services.contracts.records import WorkerRecord


class TaskSource:
    """Takes tasks of the run's datasets (see WorkSource)."""

    def __init__(self, work: RunWork, evaluator: Evaluator) -> None:
        self._work, self._context, self._leases = work, work.context, work.leases
        self._evaluator = evaluator
        # Grows while groups fill fewer sequences than they have samples.
        self._group_limit = work.context.group_slots

    async def take(self) -> str:
        context, leases = self._context, self._leases
        live = context.follower.live
        if live is None or not context.follower.healthy or context.follower.sleeping:
            return "weights"
        if self._work.tasks.paused:
            return "unavailable"
        if context.evaluation_only:
            # This worker leases no task, so only this answer makes it check whether the run has
            # ended.
            return "state"
        if self._evaluator.clearing:
            return "evaluation"
        count = to_lease(self._limit(), leases.generating, len(leases) - leases.generating)
        if count == 0:
            return "full"
        granted = await self._work.store.tasks.lease(
            context.run,
            worker=context.worker,
            lineage=live.lineage,
            version=live.version,
            count=count,
            ttl=context.config.rollout.lease_seconds,
            reserve_bytes=self._work.reserve,
        )
        if not context.follower.healthy:
            # The weights became doubtful after the request: tokens could carry a wrong version.
            await leases.release([lease.attempt for lease in granted.leases])
            return "weights"
        for lease in granted.leases:
            self._work.tasks.begin(lease, live)
        return granted.refusal

    def _limit(self) -> int:
        """Return how many groups training may have in vLLM."""
        context, used = self._context, self._evaluator.samples
        if not used:
            return self._group_limit
        share, samples = context.evaluation_share, context.config.algorithm.samples_generated
        groups = share_of(context.completions, used, 1 - (share or 0.0), samples)
        return min(self._group_limit, groups)

    @property
    def busy(self) -> bool:
        return len(self._leases) > 0

    def describe(self, record: WorkerRecord) -> None:
        record.groups_in_flight = len(self._leases)
        record.scoring = len(self._leases) - self._leases.generating

    def widen(self, unfinished: int) -> None:
        context = self._context
        if context.config.rollout.groups_in_flight is None:
            previous = self._group_limit
            self._group_limit = widened(
                context.group_slots,
                self._leases.generating,
                unfinished,
                context.sequences.at_once,
                context.config.algorithm.samples_generated,
            )
            if self._group_limit > previous:
                self._work.wake.set()

    async def renew(self, moving: bool) -> None:
        await self._leases.renew(moving)

    async def release_sampling(self) -> None:
        await self._leases.release_all()

    async def release_all(self) -> None:
        await self._leases.release_all()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return []
