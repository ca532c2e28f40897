"""The leases that a worker holds, and how each ends: completed, dropped, filtered, released (on
SIGTERM too), or lost.

Every store call here is retried until Redis answers. A second call for an attempt that has ended
changes nothing.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from rollout.aio import retry
from rollout.work.dropped_tasks import TRIES
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.records import HeldTask
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store
from services.store.errors import StreamFull
from services.store.work.tasks import Lease, Passed

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DRAIN_SECONDS = 5.0
"""Seconds that groups in scoring have to finish when the worker stops."""
SPACE_SECONDS = 1.0
"""Seconds until a group that did not fit in Redis is sent again."""


@dataclass
class _HeldLease:
    task: int
    work: asyncio.Task[None]
    generating: bool = True
    ending: bool = False
    """Whether this worker has already asked the store to end the lease. A lease that is gone is
    then not lost."""
    leased: float = field(default_factory=time.monotonic)
    stage_began: float = field(default_factory=time.monotonic)


class Leases:
    def __init__(self, run: str, store: Store, ttl: float, changed: Callable[[], None]) -> None:
        self._run = run
        self.tasks = store.tasks
        self._ttl = ttl
        self._changed = changed
        self._held: dict[str, _HeldLease] = {}
        self.leaving = asyncio.Event()
        """Set when the worker leaves: groups in vLLM then end with what they have."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def generating(self) -> int:
        """Groups in vLLM. All others are being scored."""
        return sum(held.generating for held in self._held.values())

    @property
    def oldest(self) -> HeldTask | None:
        """The held task that comes first in the run's order."""
        held = min(self._held.values(), key=lambda lease: lease.task, default=None)
        if held is None:
            return None
        now = time.monotonic()
        return HeldTask(
            task=held.task,
            stage="generating" if held.generating else "scoring",
            leased_seconds=round(now - held.leased, 1),
            stage_seconds=round(now - held.stage_began, 1),
        )

    def hold(self, lease: Lease, work: asyncio.Task[None]) -> None:
        """Note that `work` samples the task of `lease` and ends its attempt."""
        self._held[lease.attempt] = _HeldLease(lease.task, work)

    def generated(self, attempt: str) -> None:
        """Note that the group has left vLLM, so that another fits."""
        if held := self._held.get(attempt):
            held.generating = False
            held.stage_began = time.monotonic()
        self._changed()

    def ended(self, attempt: str) -> None:
        self._held.pop(attempt, None)
        self._changed()

    async def ask(
        self, call: Callable[Concatenate[str, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the answer to a call of `store.tasks` about the run."""
        return await retry("a lease", lambda: call(self._run, *args, **kwargs))

    async def end(
        self,
        attempt: str,
        call: Callable[Concatenate[str, str, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """End an attempt by a call of `store.tasks`, and return the answer."""
        if held := self._held.get(attempt):
            held.ending = True
        return await retry("a lease", lambda: call(self._run, attempt, *args, **kwargs))

    async def complete(
        self,
        attempt: str,
        version: int,
        lineage: str,
        blob: bytes,
        lengths: GroupLengths,
        passed: Passed | None = None,
    ) -> bool:
        """Complete the attempt with its group, once Redis has space for it. The lease is held until
        then. `passed` is set with a curriculum. Return False if the group came too late."""
        while True:
            try:
                handed_in = await self.end(
                    attempt,
                    self.tasks.complete,
                    min_version=version,
                    lineage=lineage,
                    blob=blob,
                    lengths=lengths,
                    passed=passed,
                )
                break
            except StreamFull:
                if held := self._held.get(attempt):
                    held.ending = False
            has_space = False
            while not has_space:
                await asyncio.sleep(SPACE_SECONDS * random.uniform(0.8, 1.2))
                has_space = await self.ask(
                    self.tasks.stream_takes,
                    attempt,
                    min_version=version,
                    lineage=lineage,
                    size=len(blob),
                )
        if not handed_in:
            log.info("a group came too late and is discarded")
        return handed_in

    async def drop(self, attempt: str, reason: str, detail: str) -> bool:
        """End the task without training it. Return False if it was no longer held."""
        return await self.end(attempt, self.tasks.drop, reason, detail)

    async def set_aside(self, attempt: str, oldest: str, blob: bytes) -> bool:
        """Release a task, and keep its partial `blob` for the next attempt. `oldest` is the version
        tag of its oldest token. Return False if the partial was not kept."""
        kept = await self.end(attempt, self.tasks.set_aside, oldest, blob)
        return bool(kept)

    async def release(self, attempts: list[str], cause: str = "", detail: str = "") -> None:
        """Release the tasks, so that other workers can lease them. With a `cause`, a task that
        failed TRIES times is dropped (`dropped_tasks`)."""
        for attempt in attempts:
            if held := self._held.get(attempt):
                held.ending = True
        if attempts:
            await self.ask(self.tasks.release, attempts, cause=cause, detail=detail, limit=TRIES)

    async def renew(self, moving: bool) -> None:
        """Renew the leases of groups in scoring and, if vLLM is `moving`, of groups in vLLM.
        Cancels the work on lost leases. Raises RedisError."""
        keep = [a for a, held in self._held.items() if moving or not held.generating]
        if not keep:
            return
        for attempt in await self.tasks.renew(self._run, keep, self._ttl):
            held = self._held.get(attempt)
            if held and not held.ending:
                log.info("lease lost", task=held.task, attempt=attempt)
                held.work.cancel()

    async def release_on_sigterm(self, leasing: asyncio.Task[None]) -> None:
        """Release groups in vLLM with what they have sampled (`group_tasks`), so that other workers
        continue them; groups in scoring get DRAIN_SECONDS to finish. `leasing` is already ending,
        but Redis may be granting it a lease at this moment."""
        self.leaving.set()
        sampling = [held.work for held in self._held.values() if held.generating]
        await asyncio.wait([leasing, *sampling], timeout=DRAIN_SECONDS)
        await self.release_generating()
        if works := [held.work for held in self._held.values()]:
            await asyncio.wait(works, timeout=DRAIN_SECONDS)

    async def release_generating(self) -> None:
        """Stop and release the groups in vLLM."""
        held = {attempt: lease for attempt, lease in self._held.items() if lease.generating}
        await end(lease.work for lease in held.values())
        await self.release(list(held))

    async def release_all(self) -> None:
        held = dict(self._held)
        await end(lease.work for lease in held.values())
        self._held.clear()
        await self.release(list(held))
