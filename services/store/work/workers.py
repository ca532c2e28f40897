"""Rollout workers, by their last heartbeat at Redis' own time, so hosts need not agree on it."""

from services.contracts.records import WorkerRecord
from services.store.keys import POOLS
from services.store.scripts import StorePart
from services.store.unreadable import as_text, read_json

GONE_SECONDS = 30.0
"""A worker without a heartbeat for this long is not listed."""


class Workers(StorePart):
    """Calls about workers. A pool has two keys: each worker's record, and the time of its
    heartbeat."""

    async def heartbeat(self, record: WorkerRecord) -> None:
        """Record that a worker is alive, and its state."""
        # Checked first: a full Redis takes the heartbeat, but not a member that it already has.
        if not await self._redis.sismember(POOLS, record.pool):
            await self._redis.sadd(POOLS, record.pool)
        text = record.model_dump_json(exclude={"heartbeat"})
        await self._scripts.run("heartbeat", [record.id, text], pool=record.pool)

    async def seen(self, pool: str) -> tuple[float, list[WorkerRecord]]:
        """Return Redis' clock (Unix seconds) and the workers of a pool with a recent heartbeat."""
        silence = int(GONE_SECONDS * 1000)
        clock, *reply = await self._scripts.run("list_workers", [silence], pool=pool)
        now = int(clock) / 1000
        beats = zip(reply[::2], reply[1::2], strict=True)
        read = [(read_json(WorkerRecord, f"a worker of pool {pool}", t), beat) for t, beat in beats]
        records = [
            worker.at(now, float(beat) / 1000) for worker, beat in read if worker is not None
        ]
        return now, sorted(records, key=lambda record: record.id)

    async def remove(self, pool: str, id: str) -> None:
        await self._scripts.run("remove_worker", [id], pool=pool)

    async def list(self, pool: str | None = None) -> list[WorkerRecord]:
        """Return the workers of a pool, or of all pools, with a recent heartbeat."""
        pools = [pool] if pool else [as_text(name) for name in await self._redis.smembers(POOLS)]
        workers = [record for name in pools for record in (await self.seen(name))[1]]
        return sorted(workers, key=lambda record: record.id)
