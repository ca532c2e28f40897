"""Copies the store's whole content out of one Redis and into another, for backups.

The keys of a run are read at one moment: a restored run is as if its processes had all been killed
then. Leases are restored too, and lapse by themselves. Locks and heartbeats are not restored.
"""

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from redis.exceptions import ResponseError

from headrace.wording import counted
from services.store.keys import (
    API_KEYS,
    CHAINS,
    DATASET_NAMES,
    DATASETS,
    LIVE_PARTS,
    OPEN_CHAINS,
    POOL_PARTS_KEPT,
    POOLS,
    RESTORING,
    RUN_PARTS,
    RUNS,
    SCHEMA,
    pool_key,
    run_key,
)
from services.store.runs.runs import Runs, queue_score
from services.store.scripts import Scripts, StorePart
from services.store.unreadable import as_text

UNSAVED_PARTS = (*LIVE_PARTS, "log")
"""Keys that expire."""
BY_FIELD = ("blobs", "partials")
"""Hashes that may outgrow what Redis takes in one piece (512 MB): waiting groups, and partials."""
FIELDS_AT_ONCE = 64
SHARED = (SCHEMA, DATASETS, DATASET_NAMES, API_KEYS)
FIRST = (CHAINS, OPEN_CHAINS)
"""Read before runs and written last: a chain that is older than its runs finds them."""


class Dump(msgspec.Struct, frozen=True):
    """Some keys at one moment."""

    of: Literal["run", "pool", "shared"]
    name: str
    """The run's id, the pool's name, or the key."""
    dumps: dict[str, bytes] = {}
    """By key, in Redis' own form, which has a checksum and a version."""
    hashes: dict[str, dict[bytes, bytes]] = {}
    """By key, field by field."""
    created: float = 0.0
    """For a run: its place in the list of all runs."""


class NotEmpty(RuntimeError):
    """Redis is not empty: a backup needs an empty one."""


class ForeignDump(RuntimeError):
    """This Redis cannot read what another kind or version of Redis has written."""


class Dumps(StorePart):
    """Calls that read and write the whole store."""

    def __init__(self, redis: Any, scripts: Scripts, runs: Runs) -> None:
        super().__init__(redis, scripts)
        self._runs = runs

    async def read(self) -> AsyncIterator[Dump]:
        """Yield everything: chains, pools, runs (oldest first), datasets and API keys."""
        for key in FIRST:
            yield await self._dump("shared", key, [key])
        pools = sorted(as_text(name) for name in await self._redis.smembers(POOLS))
        listed = await self._redis.zrange(RUNS, 0, -1, withscores=True)
        for name in pools:
            keys = [pool_key(name, part) for part in POOL_PARTS_KEPT]
            yield await self._dump("pool", name, keys)
        for id, created in listed:
            name = as_text(id)
            keys = [run_key(name, part) for part in RUN_PARTS if part not in UNSAVED_PARTS]
            yield await self._dump("run", name, keys, float(created))
        for key in SHARED:
            yield await self._dump("shared", key, [key])

    async def _dump(
        self, of: Literal["run", "pool", "shared"], name: str, keys: list[str], created: float = 0.0
    ) -> Dump:
        by_field = [i for i, key in enumerate(keys, 1) if key.rpartition(":")[2] in BY_FIELD]
        reply = await self._scripts.run("dump", by_field, more=keys)
        dumps, hashes = {}, {}
        for key, value in zip(keys, reply, strict=True):
            if isinstance(value, list):
                hashes[key] = dict(zip(value[::2], value[1::2], strict=True))
            elif value:
                dumps[key] = value
        return Dump(of, name, dumps, hashes, created)

    async def begin(self, backup: str) -> None:
        """Claim an empty store for restoring `backup`. A restore of `backup` that broke off goes
        on. Raises NotEmpty."""
        claimed = await self._redis.get(RESTORING)
        if claimed is not None and claimed.decode() == backup:
            return
        runs = await self._redis.zcard(RUNS)
        datasets = await self._redis.hlen(DATASET_NAMES)
        if runs or datasets or claimed:
            held = (
                f"{counted(runs, 'run')} and {counted(datasets, 'dataset')}"
                if runs or datasets
                else "half a backup"
            )
            raise NotEmpty(f"this Redis holds {held}; a backup goes into an empty one")
        await self._redis.set(RESTORING, backup)

    async def restoring(self) -> bool:
        """Return whether a backup is being restored, so that parts are missing."""
        return bool(await self._redis.exists(RESTORING))

    async def write(self, part: Dump) -> None:
        """Write one part; writing it again does no harm. Pools must come last, so that no learner
        takes a run that is missing. Raises ForeignDump."""
        for key, dump in part.dumps.items():
            try:
                await self._redis.restore(key, 0, dump, replace=True)
            except ResponseError as error:
                if "DUMP payload" not in str(error):
                    raise
                raise ForeignDump(
                    f"{key} was written by another kind of Redis than this one, or a newer one, or "
                    "is damaged: restore into the kind that it was backed up from (Redis or "
                    "Valkey), of at least its version"
                ) from None
        for key, fields in part.hashes.items():
            await self._redis.delete(key)
            items = list(fields.items())
            for start in range(0, len(items), FIELDS_AT_ONCE):
                await self._redis.hset(key, mapping=dict(items[start : start + FIELDS_AT_ONCE]))
        if part.of == "run":
            await self._redis.zadd(RUNS, {part.name: part.created})
        if part.of == "pool":
            await self._redis.sadd(POOLS, part.name)

    async def end(self) -> None:
        """Finish a restore: put every run that is not over into its pool's queue, even if pool and
        run were read before and after a change."""
        for id in await self._redis.zrange(RUNS, 0, -1):
            (run,) = await self._runs.summaries([as_text(id)])
            if run is None or run.state.final:
                continue
            if await self._redis.get(pool_key(run.pool, "active")) != id:
                score = queue_score(run.created, run.priority)
                await self._redis.zadd(pool_key(run.pool, "queue"), {id: score})
        for pool in [as_text(name) for name in await self._redis.smembers(POOLS)]:
            queue, active = pool_key(pool, "queue"), pool_key(pool, "active")
            for id in await self._redis.zrange(queue, 0, -1):
                if await self._redis.zscore(RUNS, id) is None:
                    await self._redis.zrem(queue, id)
            active_run = await self._redis.get(active)
            if active_run and await self._redis.zscore(RUNS, active_run) is None:
                await self._redis.delete(active)
        await self._redis.delete(RESTORING)
