"""The state that the loops of one worker on one run share, and the interface of its source of
work."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from rollout.run_events import RunEvents
from rollout.vllm.client.sampling_mask import TIES
from rollout.work.capacity import reserve_bytes
from rollout.work.failure_limit import FailureLimit
from rollout.work.group_tasks import GroupTasks, WorkStatus
from rollout.work.leases import Leases
from rollout.work.run_context import RunContext
from rollout.work.task_rows import TaskRows
from services.contracts.records import WorkerRecord
from services.store import Store


@dataclass
class RunWork:
    context: RunContext
    store: Store
    rows: TaskRows
    run_events: RunEvents
    limit: FailureLimit
    wake: asyncio.Event
    """Wakes the loop that takes work."""
    check: asyncio.Event = field(default_factory=asyncio.Event)
    """Wakes the loop that checks whether work can go on."""
    status: WorkStatus = field(default_factory=WorkStatus)
    closing: bool = False
    """Whether no work is to be taken any more."""

    def __post_init__(self) -> None:
        self.limit.start()
        ttl = self.context.config.rollout.lease_seconds
        self.leases = Leases(self.context.run, self.store, ttl, self.wake.set)
        self.tasks = GroupTasks(
            self.rows, self.leases, self.run_events, self.limit, self.status, self.check.set
        )

    @cached_property
    def reserve(self) -> int:
        """The bytes that a lease reserves in Redis for its group."""
        context, config = self.context, self.context.config
        # An id, a log-probability, a bit of the mask; a teacher's log-probability; the candidates.
        token_bytes = 9 + 4 * (context.teacher is not None) + context.routing_bytes
        if config.sampling.top_k:
            token_bytes += 4 + 3 * (config.sampling.top_k + TIES)
        largest = reserve_bytes(
            config.algorithm.samples_per_prompt,
            max(1, *(len(dataset.rewards) for dataset in config.datasets.values())),
            min(config.max_tokens, context.context),
            token_bytes,
            (4 + context.routing_bytes) * context.context,
        )
        # Larger groups do not go into Redis, and their references hardly count.
        return min(largest, context.payloads.above)


class WorkSource(Protocol):
    """Gives a worker its work on a run: tasks of a dataset, or calls of agents."""

    async def take(self) -> str:
        """Take work. Return why there is no more: '' (all was granted), `full`, `weights`,
        `unavailable`, `evaluation`, or the store's refusal."""

    @property
    def busy(self) -> bool:
        """Whether the worker holds any work."""

    def describe(self, record: WorkerRecord) -> None:
        """Write the work that is held into the heartbeat `record`."""

    def widen(self, unfinished: int) -> None:
        """Note that vLLM has `unfinished` sequences: more work may fit."""

    async def renew(self, moving: bool) -> None:
        """Renew what is held. Work in vLLM is renewed only if vLLM is `moving`. Raises
        RedisError."""

    async def release_sampling(self) -> None:
        """Stop and release work whose tokens wrong weights may have sampled."""

    async def release_all(self) -> None:
        """Stop and release everything that is held."""

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return loops of the source that run while the worker works."""
