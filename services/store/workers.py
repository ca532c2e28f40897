"""Rollout workers by their last heartbeat, in Redis' own time: hosts need not agree on it."""

from typing import Any

from services.contracts.records import WorkerRecord
from services.store.keys import POOLS, pool_key

GONE_SECONDS = 30.0
"""A worker that has not been heard of for this long is not listed."""


class Workers:
    """A hash per pool; a heartbeat costs two writes and a look at the clock."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Say that a worker lives, and how it is."""
        await self._redis.sadd(POOLS, record.pool)
        now = record.model_copy(update={"heartbeat": await self._now()})
        await self._redis.hset(pool_key(record.pool, "workers"), record.id, now.model_dump_json())

    async def list(self, pool: str | None = None) -> list[WorkerRecord]:
        """The workers of a pool, or of all, that were heard of lately."""
        pools = [pool] if pool else [name.decode() for name in await self._redis.smembers(POOLS)]
        found = []
        now = await self._now()
        for name in pools:
            for text in (await self._redis.hgetall(pool_key(name, "workers"))).values():
                record = WorkerRecord.model_validate_json(text)
                if now - record.heartbeat < GONE_SECONDS:
                    found.append(record)
                else:
                    await self._redis.hdel(pool_key(name, "workers"), record.id)
        return sorted(found, key=lambda record: record.id)

    async def remove(self, pool: str, id: str) -> None:
        """A worker says goodbye."""
        await self._redis.hdel(pool_key(pool, "workers"), id)

    async def _now(self) -> float:
        seconds, microseconds = await self._redis.time()
        return float(seconds + microseconds / 1e6)
