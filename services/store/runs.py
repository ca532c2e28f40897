"""Run records, the pools' queues, and who may train."""

import json
import time
from typing import Any

from services.contracts.records import RunRecord, RunState
from services.store.datasets import Datasets
from services.store.errors import Fenced
from services.store.keys import RUNS, pool_key, run_key
from services.store.scripts import Scripts

OLDEST_FIRST = 1e10
"""Queue score: a step of priority outweighs any difference of age (Unix seconds)."""


class Runs:
    """One hash per run; its fields are those of RunRecord and what the scripts read."""

    def __init__(self, redis: Any, scripts: Scripts, datasets: Datasets) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes
        self._scripts = scripts
        self._datasets = datasets

    async def submit(self, record: RunRecord) -> None:
        """Write a run and queue it. With `resume_from`, it continues at that run's checkpoint,
        with that run's open draws first. Raises KeyError where a dataset or run is gone."""
        old = None
        if record.resume_from:
            old = await self.get(record.resume_from)
            if old is None:
                raise KeyError(record.resume_from)
            record = record.model_copy(
                update={
                    "checkpoint": old.checkpoint,
                    "committed_step": old.committed_step,
                    "step": old.committed_step,
                    "version": old.committed_step,
                }
            )
        fields: dict[Any, Any] = {
            name: _written(value)
            for name, value in record.model_dump(mode="json").items()
            if value is not None
        }
        fields["dataset"] = record.config["data"]["dataset"]
        if record.kind == "rl":
            fields["batch"] = record.config["algorithm"]["prompts_per_step"]
            fields["max_staleness"] = record.config["rollout"]["max_staleness"]
            fields["stream_bytes"] = record.config["rollout"]["stream_bytes"]
            await self._lay_order(record, old)
        await self._redis.hset(run_key(record.id, "run"), mapping=fields)
        await self._redis.zadd(RUNS, {record.id: record.created})
        score = record.created - record.priority * OLDEST_FIRST
        await self._redis.zadd(pool_key(record.pool, "queue"), {record.id: score})

    async def _lay_order(self, record: RunRecord, old: RunRecord | None) -> None:
        dataset = await self._datasets.find(record.config["data"]["dataset"])
        rows = dataset.rows if dataset else 0
        order: dict[Any, Any] = {"position": 0, "epoch": 0, "rows": rows, "index": 0}
        if old is not None:
            order |= await self._redis.hgetall(run_key(old.id, "order"))
            held = await self._redis.hvals(run_key(old.id, "held"))
            groups: Any = await self._redis.xrange(run_key(old.id, "groups"))
            draws = [
                *await self._redis.lrange(run_key(old.id, "returned"), 0, -1),
                *[text.split(b" ")[0] for text in held],
                *[said[b"draw"] for _, said in groups],
            ]
            if draws:
                inorder = sorted(set(draws), key=lambda draw: int(draw.split(b":")[0]))
                await self._redis.rpush(run_key(record.id, "returned"), *inorder)
        order["dataset_rows"] = rows
        await self._redis.hset(run_key(record.id, "order"), mapping=order)

    async def get(self, run: str) -> RunRecord | None:
        """A run by id."""
        found = await self._redis.hgetall(run_key(run, "run"))
        if not found:
            return None
        fields: dict[str, Any] = {key.decode(): value.decode() for key, value in found.items()}
        for name in ("config", "summary"):
            if name in fields:
                fields[name] = json.loads(fields[name])
        return RunRecord.model_validate(
            {name: fields[name] for name in RunRecord.model_fields if name in fields}
        )

    async def list(self) -> list[RunRecord]:
        """All runs, newest first."""
        ids = [id.decode() for id in await self._redis.zrevrange(RUNS, 0, -1)]
        return [record for id in ids if (record := await self.get(id)) is not None]

    async def active(self, pool: str) -> RunRecord | None:
        """The run that a pool works on."""
        run = await self._redis.get(pool_key(pool, "active"))
        return await self.get(run.decode()) if run else None

    async def cancel(self, run: str) -> None:
        """Ask a run to end; one that still queues ends at once."""
        await self._redis.hset(run_key(run, "run"), "cancel_requested", "1")
        record = await self.get(run)
        if record and await self._redis.zrem(pool_key(record.pool, "queue"), run):
            await self.set_state(run, RunState.CANCELLED, "cancelled before it started")

    async def set_state(self, run: str, state: str, reason: str) -> bool:
        """Change a run's state, with an event. False: its state is final."""
        keys = [run_key(run, "run"), run_key(run, "events")]
        final = int(RunState(state).final)
        arguments = [str(RunState(state)), reason, time.time(), "", final]
        return bool(await self._scripts.run("set_state", keys, arguments))

    async def fail(self, run: str, reason: str) -> bool:
        """End a run as failed. Its learner notices and goes on to the next."""
        return await self.set_state(run, RunState.FAILED, reason)

    # --- the learner --------------------------------------------------------------------------

    async def take(self, pool: str) -> RunRecord | None:
        """The pool's active run, else the first of its queue, which becomes active."""
        keys = [pool_key(pool, "active"), pool_key(pool, "queue")]
        run = await self._scripts.run("take_run", keys, [])
        return await self.get(run.decode()) if run else None

    async def acquire(self, run: str, lineage: str) -> int:
        """Take a run over under a new lineage. Returns the epoch that fences all others."""
        keys = [run_key(run, "run"), run_key(run, "groups")]
        return int(await self._scripts.run("acquire", keys, [lineage]))

    async def update(self, run: str, epoch: int, fields: dict[str, Any]) -> None:
        """Set fields of the record. Raises Fenced."""
        arguments = [part for name, value in fields.items() for part in (name, _written(value))]
        keys = [run_key(run, "run")]
        if await self._scripts.run("update_run", keys, [epoch, *arguments]) == -1:
            raise Fenced(run)

    async def finish(self, run: str, pool: str, state: str, reason: str) -> None:
        """End a run and make room for the pool's next one."""
        await self.set_state(run, state, reason)
        await self._scripts.run("compare_delete", [pool_key(pool, "active")], [run])

    async def lock_pool(self, pool: str, token: str, seconds: float) -> str:
        """Become a pool's learner: '' where that worked, else the holder's token."""
        key = pool_key(pool, "learner")
        if await self._redis.set(key, token, nx=True, px=int(seconds * 1000)):
            return ""
        holder = await self._redis.get(key)
        return holder.decode() if holder else await self.lock_pool(pool, token, seconds)

    async def pool_lock_seconds(self, pool: str) -> float:
        """How long the lock lasts unless it is prolonged."""
        return float(await self._redis.pttl(pool_key(pool, "learner"))) / 1000

    async def prolong_pool(self, pool: str, token: str, seconds: float) -> bool:
        """Keep the lock. False: it is someone else's, or lapsed."""
        keys = [pool_key(pool, "learner")]
        return bool(await self._scripts.run("compare_expire", keys, [token, int(seconds * 1000)]))

    async def release_pool(self, pool: str, token: str) -> None:
        """Give the lock up."""
        await self._scripts.run("compare_delete", [pool_key(pool, "learner")], [token])


def _written(value: Any) -> Any:
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, dict | list) else value
