"""Pools: their learner's lock, and what their queued runs wait for."""

from collections.abc import Sequence
from typing import Any

from services.contracts.devices import LearnerDevices
from services.contracts.records import Queue
from services.store.keys import pool_key
from services.store.runs.runs import Runs
from services.store.scripts import Scripts, StorePart
from services.store.unreadable import as_text, read_json

QUEUE_SHOWN = 3
"""Runs at the head of a queue that the reason of a queued run may name."""
LOCK_SECONDS = 10.0
"""How long a pool's learner keeps its lock without prolonging it."""


class Pools(StorePart):
    """Calls about pools. A pool has one lock, with the token of its learner."""

    def __init__(self, redis: Any, scripts: Scripts, runs: Runs) -> None:
        super().__init__(redis, scripts)
        self._runs = runs

    async def queue(self, pool: str, runs: Sequence[str]) -> Queue:
        """Return what these queued runs of a pool wait for."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(pool_key(pool, "active"))
            pipe.exists(pool_key(pool, "learner"))
            pipe.zrange(pool_key(pool, "queue"), 0, QUEUE_SHOWN - 1)
            for id in runs:
                pipe.zrank(pool_key(pool, "queue"), id)
            active, learner, first, *ranks = await pipe.execute()
        (run,) = await self._runs.summaries([as_text(active)]) if active else [None]
        positions = {id: rank for id, rank in zip(runs, ranks, strict=True) if rank is not None}
        return Queue(run, [as_text(id) for id in first], positions, bool(learner))

    async def lock(self, pool: str, token: str, seconds: float) -> str:
        """Become a pool's learner. Returns '', or the token of the present learner."""
        key = pool_key(pool, "learner")
        if await self._redis.set(key, token, nx=True, px=int(seconds * 1000)):
            return ""
        holder = await self._redis.get(key)
        if holder is None:
            return await self.lock(pool, token, seconds)
        # The lock is ours already: the reply was lost, and the client asked again.
        return "" if holder.decode() == token else str(holder.decode())

    async def lock_seconds(self, pool: str) -> float:
        """Return the seconds until the lock lapses unless it is prolonged."""
        return float(await self._redis.pttl(pool_key(pool, "learner"))) / 1000

    async def report_devices(self, pool: str, devices: LearnerDevices) -> None:
        """Record the devices of the pool's learner."""
        await self._redis.set(pool_key(pool, "devices"), devices.model_dump_json())

    async def devices(self, pool: str) -> LearnerDevices | None:
        """Return the devices of the pool's present or last learner, or None."""
        text = await self._redis.get(pool_key(pool, "devices"))
        return read_json(LearnerDevices, f"the devices of pool {pool}", text) if text else None

    async def prolong(self, pool: str, token: str, seconds: float) -> bool:
        """Keep the lock. Returns False if it has lapsed, or another learner has it."""
        arguments = [token, int(seconds * 1000)]
        return bool(await self._scripts.run("prolong_lock", arguments, pool=pool))

    async def unlock(self, pool: str, token: str) -> None:
        await self._scripts.run("compare_delete", [token], more=[pool_key(pool, "learner")])
