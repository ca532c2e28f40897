"""Leaves what a group has sampled when the worker leaves, and takes what another worker has left.

Only tokens of proven versions are left. A partial that cannot be kept or read costs its tokens, and
nothing else: the group is sampled from its prompt.
"""

import contextlib
import time

from redis.exceptions import RedisError

from rollout.run_events import RunEvents
from rollout.vllm.client.resume import Begun
from rollout.work.group_assembly import Origin, oldest_tag
from rollout.work.leases import Leases
from rollout.work.partial_group import begun_group, partial_group
from rollout.work.task_rows import TaskRow
from services.contracts.groups.payload import Owner
from services.contracts.groups.trajectory import decode, encode
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.store.work.tasks import Lease

log = get_logger(__name__)


class Partials:
    def __init__(self, leases: Leases, run_events: RunEvents) -> None:
        self._leases, self._run_events = leases, run_events
        self.groups = self.tokens = 0
        """Groups that this worker has left, and their tokens."""

    async def leave(
        self, lease: Lease, live: WeightManifest, row: TaskRow, begun: Begun | None
    ) -> None:
        """Release the task of `lease`, and leave the samples `begun` to the next attempt."""
        context = row.dataset.context
        # With routing replay a group has up to 206 MB, too much for a worker's last seconds.
        if begun is None or begun.tokens == 0 or context.config.algorithm.router.replay:
            await self._leases.release([lease.attempt])
            return
        origin = Origin(
            run=context.run,
            task=lease.task,
            attempt=lease.attempt,
            worker=context.worker,
            row=row.index,
            lineage=live.lineage,
            leased_at=time.time(),
            dataset=row.dataset.name,
        )
        group = partial_group(origin, begun)
        tags = group.header.tags
        await context.follower.until_proven(tags)
        owner = Owner(context.run, lease.task, lease.attempt)
        try:
            stored = await context.payloads.stored(owner, encode(group))
        except OSError as error:
            # PlaceAway is an OSError, too.
            log.warning("a partial is not written", error=str(error))
            await self._leases.release([lease.attempt])
            return
        oldest = oldest_tag(tags, live.tag, context.follower.forks)
        if await self._leases.set_aside(lease.attempt, oldest, stored):
            self.groups, self.tokens = self.groups + 1, self.tokens + begun.tokens
            return
        log.warning("a partial is not kept: rollout.stream_bytes is full", tokens=begun.tokens)
        with contextlib.suppress(RedisError, OSError):
            await context.payloads.discard(stored)

    async def begun(self, lease: Lease, row: TaskRow) -> Begun | None:
        """Return what an earlier attempt has left of the task, or None. Raises PlaceAway."""
        if lease.partial == "stale":
            await self._run_events.counted(
                "stale partial",
                f"{row} is sampled from its prompt: what a worker had left of it is older than "
                "rollout.max_staleness",
            )
        if lease.partial != "continued":
            return None
        context = row.dataset.context
        stored = await self._leases.ask(self._leases.tasks.partial, lease.task)
        if stored is None:
            return None
        try:
            group = decode(await context.payloads.read(stored))
            if (group.header.run, group.header.task) != (context.run, lease.task):
                raise ValueError(f"it is of task {group.header.task} of {group.header.run}")
            begun = begun_group(group)
        except ValueError as error:
            # Damaged, SchemaMismatch and MalformedAnswer are ValueErrors.
            await self._run_events.counted(
                "damaged partial",
                f"{row} is sampled from its prompt: what a worker had left of it cannot be read: "
                f"{error}",
            )
            return None
        log.info("a group is continued", tokens=begun.tokens, left_by=begun.worker)
        return begun
