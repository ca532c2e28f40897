"""Run records, the pools' queues, and who may train."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.contracts.weights import parse_version_tag
from services.store.datasets import Datasets
from services.store.errors import Fenced, Gone, StillRunning
from services.store.evaluations import PARTS as EVALUATION_PARTS
from services.store.keys import POOLS, RUN_PARTS, RUNS, pool_key, run_key
from services.store.scripts import Scripts

OLDEST_FIRST = 1e10
"""Queue score: a step of priority outweighs any difference of age (Unix seconds)."""
LOCK_SECONDS = 10.0
"""How long a pool's learner keeps its lock without prolonging it."""

SETTLED = (
    *("run", "order", "returned", "attempts", "held", "groups", "blobs", "bytes", "plans"),
    *("tries", "lineages", "evaluation", *EVALUATION_PARTS),
)


def queue_score(created: float, priority: int) -> float:
    """A run's place in its pool's queue; the lowest comes first."""
    return created - priority * OLDEST_FIRST


@dataclass(frozen=True)
class _Ended:
    """What a run that continues another one takes over."""

    run: str
    step: int
    checkpoint: str | None
    order: dict[str, int]
    """Position, epoch, rows, index; empty where the run never sampled."""
    lineages: list[str]
    open: list[str]


class Runs:
    """One hash per run; its fields are those of RunRecord and what the scripts read."""

    def __init__(self, redis: Any, scripts: Scripts, datasets: Datasets) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes
        self._scripts = scripts
        self._datasets = datasets

    async def submit(self, record: RunRecord, starts_from: Collection[str] = ()) -> None:
        """Write a run and queue it. With `resume_from`, it continues at that run's checkpoint,
        with that run's open draws first. Raises Gone where that run, or one of `starts_from`, is
        gone or being deleted, StillRunning where it has not ended."""
        ended = await self._settle(record.resume_from) if record.resume_from else None
        if ended is not None:
            record = record.model_copy(
                update={
                    "checkpoint": ended.checkpoint,
                    "committed_step": ended.step,
                    "step": ended.step,
                    "version": ended.step,
                }
            )
        fields = {
            name: _written(value)
            for name, value in record.model_dump(mode="json").items()
            if value is not None
        }
        name = record.config["data"]["dataset"]
        dataset = await self._datasets.find(name)
        fields["dataset"] = name
        order, returned, cancelled, lineages, judged = {}, [], [], [], {}
        if record.kind == "rl":
            fields["batch"] = record.config["algorithm"]["prompts_per_step"]
            fields["max_staleness"] = record.config["rollout"]["max_staleness"]
            fields["stream_bytes"] = record.config["rollout"]["stream_bytes"]
            rows = dataset.rows if dataset else 0
            order = {"position": 0, "epoch": 0, "rows": rows, "index": 0}
            if ended is not None and ended.order:
                order["position"] = ended.order["position"]
                lineages = ended.lineages
                if await self._same_dataset(ended.run, dataset):
                    order, returned = dict(ended.order), ended.open
                    judged = await self._judged(ended.run)
                else:
                    # Positions go on, so that a draw of the lineage has one name; what was open
                    # points into rows that this run does not draw from.
                    cancelled = ended.open
            order |= {
                "dataset_rows": rows,
                "batch": fields["batch"],
                "base_position": order["position"],
                "base_step": record.committed_step,
                "last_finished": order["position"],
                "retired": sum(said.endswith(":1") for said in judged.values()),
            }
            if dynamic := record.config["algorithm"].get("dynamic_sampling"):
                order["left_out_limit"] = dynamic["max_left_out"] * fields["batch"]
        await self._scripts.run(
            "submit",
            [
                run_key(record.id, part)
                for part in ("run", "order", "returned", "ledger", "lineages", "judged")
            ],
            [
                json.dumps({key: str(value) for key, value in fields.items()}),
                json.dumps({key: str(value) for key, value in order.items()}),
                json.dumps(returned),
                json.dumps(cancelled),
                f"run {record.resume_from} drew from another dataset",
                json.dumps(lineages),
                json.dumps(judged),
            ],
        )
        await self._redis.sadd(POOLS, record.pool)
        await self._redis.zadd(RUNS, {record.id: record.created})
        # Only now that a deletion can see it: see doom_run.lua.
        needed = {*starts_from, *([record.resume_from] if record.resume_from else [])}
        if going := [run for run in sorted(needed) if not await self._stays(run)]:
            problem = f"run {going[0]} is being deleted; if that broke off, delete it again"
            await self.set_state(record.id, RunState.CANCELLED, problem)
            await self.delete(record.id)
            raise Gone(problem)
        # Rows that came while the run was not listed yet.
        if dataset is not None and (now := await self._datasets.find(dataset.id)) is not None:
            await self._datasets.tell(record.id, now)
        score = queue_score(record.created, record.priority)
        await self._redis.zadd(pool_key(record.pool, "queue"), {record.id: score})

    async def _stays(self, run: str) -> bool:
        state, deleting = await self._redis.hmget(run_key(run, "run"), ["state", "deleting"])
        return state is not None and deleting is None

    async def _same_dataset(self, run: str, dataset: DatasetRecord | None) -> bool:
        named = await self._redis.hget(run_key(run, "run"), "dataset")
        before = await self._datasets.find(named.decode()) if named else None
        return before is not None and dataset is not None and before.id == dataset.id

    async def _judged(self, run: str) -> dict[str, str]:
        """What a run that has ended knows of its rows (see `judge.lua`)."""
        found = await self._redis.hgetall(run_key(run, "judged"))
        return {row.decode(): said.decode() for row, said in found.items()}

    async def _settle(self, run: str) -> _Ended:
        """Close a run that has ended, and say where it stopped."""
        reply = await self._scripts.run("settle", [run_key(run, part) for part in SETTLED], [])
        if not reply:
            record = await self.get(run)
            if record is None:
                raise Gone(f"there is no run {run} any more")
            raise StillRunning(run, record.state)
        (step, checkpoint), order, lineages, draws = reply
        drawn = order[0] is not None
        return _Ended(
            run,
            int(step or 0),
            checkpoint.decode() if checkpoint else None,
            dict(zip(("position", "epoch", "rows", "index"), map(int, order), strict=True))
            if drawn
            else {},
            [lineage.decode() for lineage in lineages],
            [draw.decode() for draw in draws],
        )

    async def get(self, run: str) -> RunRecord | None:
        """A run by id."""
        found = await self._redis.hgetall(run_key(run, "run"))
        if not found:
            return None
        fields: dict[str, Any] = {key.decode(): value.decode() for key, value in found.items()}
        for name in ("config", "warnings", "summary"):
            if name in fields:
                fields[name] = json.loads(fields[name])
        return RunRecord.model_validate(
            {name: fields[name] for name in RunRecord.model_fields if name in fields}
        )

    async def standing(self, run: str) -> tuple[bool, int]:
        """Whether a run is over, is to be, or is gone; and the epoch of its learner. Three fields,
        for who asks again and again."""
        fields = ("state", "cancel_requested", "epoch")
        state, cancel, epoch = await self._redis.hmget(run_key(run, "run"), *fields)
        ends = state is None or cancel == b"1" or RunState(state.decode()).final
        return ends, int(epoch or 0)

    async def list(self) -> list[RunRecord]:
        """All runs, newest first."""
        ids = [id.decode() for id in await self._redis.zrevrange(RUNS, 0, -1)]
        return [record for id in ids if (record := await self.get(id)) is not None]

    async def active(self, pool: str) -> RunRecord | None:
        """The run that a pool works on."""
        run = await self._redis.get(pool_key(pool, "active"))
        return await self.get(run.decode()) if run else None

    async def cancel(self, run: str) -> None:
        """Ask a run to end; one that still queues ends at once. Raises KeyError where there is
        none."""
        record = await self.get(run)
        if record is None:
            raise KeyError(f"there is no run {run}")
        await self._redis.hset(run_key(run, "run"), "cancel_requested", "1")
        queued = await self._redis.zrem(pool_key(record.pool, "queue"), run)
        # One that its gateway died over is neither in the queue nor with a learner.
        active = await self._redis.get(pool_key(record.pool, "active"))
        if queued or active is None or active.decode() != run:
            await self.set_state(
                run, RunState.CANCELLED, "cancelled before it started", leaving=RunState.QUEUED
            )

    async def set_state(
        self,
        run: str,
        state: str,
        reason: str,
        *,
        leaving: RunState | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Change a run's state, with an event. False: its state is final, or not `leaving`.
        Raises Fenced where `epoch` is an old learner's."""
        keys = [run_key(run, "run"), run_key(run, "events")]
        final = int(RunState(state).final)
        given = [leaving or "", final, "" if epoch is None else epoch]
        arguments = [str(RunState(state)), reason, time.time(), *given]
        changed = await self._scripts.run("set_state", keys, arguments)
        if changed == -1:
            raise Fenced(run)
        return bool(changed)

    async def fail(self, run: str, reason: str) -> bool:
        """End a run as failed. Its learner notices and goes on to the next."""
        return await self.set_state(run, RunState.FAILED, reason)

    async def doom(self, run: str) -> None:
        """Have no other run begin with one that is over, until it is deleted or spared."""
        await self._scripts.run("doom_run", [run_key(run, "run")], [])

    async def spare(self, run: str) -> None:
        """A run is not deleted after all."""
        await self._redis.hdel(run_key(run, "run"), "deleting")

    async def free(self, record: RunRecord) -> bool:
        """Take a run that is over out of its pool's queue; whether no learner holds it either."""
        await self._redis.zrem(pool_key(record.pool, "queue"), record.id)
        active = await self._redis.get(pool_key(record.pool, "active"))
        return active is None or active.decode() != record.id

    async def delete(self, run: str) -> None:
        """Forget a run that is over and that nobody holds. Raises StillRunning."""
        keys = [run_key(run, part) for part in RUN_PARTS]
        if not await self._scripts.run("delete_run", keys, []):
            raise StillRunning(run, "not over")
        await self._redis.zrem(RUNS, run)

    # --- the learner --------------------------------------------------------------------------

    async def take(self, pool: str) -> RunRecord | None:
        """The pool's active run, else the first of its queue, which becomes active."""
        keys = [pool_key(pool, "active"), pool_key(pool, "queue")]
        run = await self._scripts.run("take_run", keys, [])
        return await self.get(run.decode()) if run else None

    async def acquire(self, run: str, lineage: str) -> int:
        """Take a run over under a new lineage. Returns the epoch that fences all others. Raises
        KeyError where there is no such run."""
        keys = [run_key(run, part) for part in ("run", "groups", "lineages")]
        epoch = int(await self._scripts.run("acquire", keys, [lineage]))
        if epoch == 0:
            raise KeyError(f"there is no run {run}")
        return epoch

    async def lineages(self, run: str) -> Sequence[tuple[str, int]]:
        """(lineage, version it began at) of every start of a learner, oldest first, those of the
        runs that this one continues included."""
        found = await self._redis.lrange(run_key(run, "lineages"), 0, -1)
        return [parse_version_tag(text.decode()) for text in found]

    async def update(self, run: str, epoch: int, fields: dict[str, Any]) -> None:
        """Set fields of the record. Raises Fenced."""
        arguments = [part for name, value in fields.items() for part in (name, _written(value))]
        keys = [run_key(run, "run")]
        if await self._scripts.run("update_run", keys, [epoch, *arguments]) == -1:
            raise Fenced(run)

    async def finish(
        self, run: str, pool: str, state: str, reason: str, *, epoch: int | None = None
    ) -> None:
        """End a run, let go of all it holds, and make room for the pool's next one. Raises Fenced
        where `epoch` is an old learner's."""
        await self.set_state(run, state, reason, epoch=epoch)
        await self._settle(run)
        await self._scripts.run("compare_delete", [pool_key(pool, "active")], [run])

    async def lock_pool(self, pool: str, token: str, seconds: float) -> str:
        """Become a pool's learner: '' where that worked, else the holder's token."""
        key = pool_key(pool, "learner")
        if await self._redis.set(key, token, nx=True, px=int(seconds * 1000)):
            return ""
        holder = await self._redis.get(key)
        if holder is None:
            return await self.lock_pool(pool, token, seconds)
        # Ours already: the reply that said so was lost, and the client asked again.
        return "" if holder.decode() == token else str(holder.decode())

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
