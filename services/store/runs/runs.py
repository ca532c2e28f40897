"""Submits, changes and deletes runs, and gives them to learners. `records.py` reads runs."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from services.contracts.records import DatasetRecord, RunRecord, RunState, RunSummary
from services.contracts.strict_json import decode
from services.contracts.weights import parse_version_tag
from services.store.datasets import Datasets
from services.store.errors import Gone, StillRunning, Unreadable
from services.store.keys import (
    EMPTIED_PARTS,
    IN_FLIGHT_PARTS,
    POOLS,
    RUN_PARTS,
    RUNS,
    pool_key,
    run_key,
)
from services.store.runs.ledger import Ledger
from services.store.runs.new_run import (
    ORDER,
    ContinuedRun,
    RowNotes,
    is_live_run,
    order_of,
    same_mixture,
    submission,
    text_of,
)
from services.store.runs.records import RunRecords
from services.store.scripts import Scripts
from services.store.unreadable import as_text, reading, report

OLDEST_FIRST = 1e10
"""Queue score: a step of priority outweighs any difference of age (Unix seconds)."""


def queue_score(created: float, priority: int) -> float:
    """Return a run's place in its pool's queue; the lowest comes first."""
    return created - priority * OLDEST_FIRST


class Runs(RunRecords):
    """Calls that change runs."""

    def __init__(self, redis: Any, scripts: Scripts, datasets: Datasets) -> None:
        super().__init__(redis, scripts)
        self._datasets = datasets
        self._ledger = Ledger(redis, scripts)

    async def submit(self, record: RunRecord, starts_from: Collection[str] = ()) -> None:
        """Write a run and queue it. With `resume_from`, it continues from that run's checkpoint, or
        from an earlier one that the record names, and leases the open tasks first. A fork leaves
        that run as it is. Raises Gone if that run, or one of `starts_from`, is gone or being
        deleted, and StillRunning if it has not ended and this is no fork."""
        # Check that the record can be read back.
        decode(record.model_dump_json().encode())
        ended = None
        if record.resume_from and record.is_fork:
            ended = await self._ledger.forked(record.resume_from, record.committed_step)
        elif record.resume_from:
            record, ended = await self._resumed(record, record.resume_from)
        dataset = await self._datasets.find(record.config["data"].get("dataset", ""))
        noted = None
        if ended is not None and await self._same_rows(ended.run, record, dataset):
            noted = RowNotes(
                *[
                    await self._redis.hgetall(run_key(ended.run, part))
                    for part in ("prompt_filter", "pass_rates")
                ]
            )
        # For live sessions each session is an epoch of one row.
        rows = dataset.rows if dataset else int(is_live_run(record))
        if record.dataset_rows:
            rows, dataset = order_of(record).epoch_rows, None
        arguments = submission(record, rows, ended, noted)
        written = await self._scripts.run("submit", arguments, run=record.id)
        if not written and record.chain:
            # Another gateway was faster. If it breaks off, `queue_again` completes the submission.
            return
        await self._list(record)
        # After `_list`, so that a deletion can see this run (mark_deleting.lua).
        needed = {*starts_from, *([record.resume_from] if record.resume_from else [])}
        if going := [run for run in sorted(needed) if not await self._stays(run)]:
            problem = f"run {going[0]} is being deleted; if that broke off, delete it again"
            await self.set_state(record.id, RunState.CANCELLED, problem)
            await self.delete(record.id)
            raise Gone(problem)
        await self._queue(record)

    async def _resumed(self, record: RunRecord, run: str) -> tuple[RunRecord, ContinuedRun]:
        """Close `run`, which has ended. Return `record` with the checkpoint that it starts from,
        and the parts of `run` that it takes over."""
        ended = await self._close(run)
        if record.checkpoint is not None:
            undone = await self._ledger.trained_after(ended.run, record.committed_step)
            return record, replace(ended, open=[*undone, *ended.open])
        at = {
            "checkpoint": ended.checkpoint,
            "committed_step": ended.step,
            "step": ended.step,
            "version": ended.step,
        }
        return record.model_copy(update=at), ended

    async def queue_again(self, record: RunSummary) -> None:
        """List and queue a run of the state `queued` whose submission broke off after it was
        written. Does nothing if the run is queued or active."""
        if await self._redis.zscore(pool_key(record.pool, "queue"), record.id) is None:
            await self._list(record)
            await self._queue(record)
            # Since `record` was read, a learner may have taken the run, and ended it.
            state = await self._redis.hget(run_key(record.id, "run"), "state")
            if state is None or RunState(state.decode()).final:
                await self._redis.zrem(pool_key(record.pool, "queue"), record.id)

    async def _list(self, record: RunSummary) -> None:
        await self._redis.sadd(POOLS, record.pool)
        await self._redis.zadd(RUNS, {record.id: record.created})
        await self._announce(record.id)

    async def _queue(self, record: RunSummary) -> None:
        # Add rows that came before the run was listed.
        name = await self._redis.hget(run_key(record.id, "run"), "dataset")
        dataset = await self._datasets.find(name.decode()) if name else None
        if dataset is not None:
            await self._datasets.grow_run(record.id, dataset)
        score = queue_score(record.created, record.priority)
        await self._scripts.run("queue_run", [record.id, score], pool=record.pool)

    async def _stays(self, run: str) -> bool:
        state, deleting = await self._redis.hmget(run_key(run, "run"), ["state", "deleting"])
        return state is not None and deleting is None

    async def _same_rows(self, run: str, record: RunRecord, dataset: DatasetRecord | None) -> bool:
        """Return whether a task of `run` is the same prompt in the run that `record` describes.
        With live sessions any session may be any task."""
        if is_live_run(record):
            return True
        if record.dataset_rows:
            before = await self.get(run)
            return before is not None and not before.damage and same_mixture(before, record)
        named = await self._redis.hget(run_key(run, "run"), "dataset")
        earlier = await self._datasets.find(named.decode()) if named else None
        return earlier is not None and dataset is not None and earlier.id == dataset.id

    async def _close(self, run: str) -> ContinuedRun:
        """Close a run that has ended, and return its last state."""
        with reading(f"what Redis holds of run {run}"):
            emptied = [run_key(run, part) for part in EMPTIED_PARTS]
            reply = await self._scripts.run("close_run", [], more=emptied, run=run)
        if not reply:
            record = await self.get(run)
            if record is None:
                raise Gone(f"there is no run {run} any more")
            raise StillRunning(run, record.state)
        (step, checkpoint), order, lineages, tasks = reply
        with reading(f"what Redis holds of run {run}"):
            return ContinuedRun(
                run,
                int(step or 0),
                checkpoint.decode() if checkpoint else None,
                dict(zip(ORDER, map(int, order), strict=True)) if order[0] is not None else {},
                [lineage.decode() for lineage in lineages],
                [task.decode() for task in tasks],
            )

    async def _discard(self, run: str) -> None:
        """Free what an ended run holds without reading it."""
        # Without a token every learner is fenced.
        await self._redis.hdel(run_key(run, "run"), "fencing_token")
        for part in ("order", "returned", "lineages", *IN_FLIGHT_PARTS, *EMPTIED_PARTS):
            await self._redis.unlink(run_key(run, part))

    async def cancel(self, run: str, *, now: bool = False) -> None:
        """Ask a run to end after its present step. A queued run ends at once. With `now` any run
        ends at once: its learner ends its ranks in the middle of a step (`learner.store.thread`).
        Raises KeyError for an unknown run."""
        record = await self.get(run)
        if record is None:
            raise KeyError(f"there is no run {run}")
        reason = "cancelled before it started"
        if await self._redis.zrem(pool_key(record.pool, "queue"), run):
            await self.set_state(run, RunState.CANCELLED, reason)
            return
        if now:
            await self.set_state(run, RunState.CANCELLED, "at once, on request")
            return
        await self.set_state(run, RunState.CANCELLING, "it ends after its present step")
        # If a gateway has died between the two steps, the run is neither queued nor with a learner.
        active = await self._redis.get(pool_key(record.pool, "active"))
        if active is None or active.decode() != run:
            await self.set_state(run, RunState.CANCELLED, reason, leaving=RunState.CANCELLING)

    async def set_state(
        self,
        run: str,
        state: str,
        reason: str,
        *,
        leaving: RunState | None = None,
        fencing_token: int | None = None,
    ) -> bool:
        """Change a run's state, and add an event. Returns False if its state is final, or not
        `leaving`. Raises Fenced if `fencing_token` is an old learner's."""
        final = int(RunState(state).final)
        conditions = [leaving or "", final, "" if fencing_token is None else fencing_token]
        arguments = [str(RunState(state)), reason, time.time(), *conditions]
        changed = bool(await self._run_fenced("set_state", run, arguments))
        # Also if it has not: a repeated call may have changed the state at first.
        await self._announce(run)
        return changed

    async def fail(self, run: str, reason: str) -> bool:
        """End a run as failed. Its learner notices and goes on to the next run."""
        return await self.set_state(run, RunState.FAILED, reason)

    async def mark_deleting(self, run: str) -> None:
        """Mark a run that is over, so that no other run starts from it or continues it."""
        await self._scripts.run("mark_deleting", [], run=run)

    async def unmark_deleting(self, run: str) -> None:
        """Remove the mark: the run is not deleted."""
        await self._redis.hdel(run_key(run, "run"), "deleting")

    async def free(self, record: RunSummary) -> bool:
        """Remove a run that is over from its pool's queue. Returns whether no learner holds it."""
        await self._redis.zrem(pool_key(record.pool, "queue"), record.id)
        active = await self._redis.get(pool_key(record.pool, "active"))
        return active is None or active.decode() != record.id

    async def delete(self, run: str) -> None:
        """Delete the keys of a run that is over and that no learner holds. Raises StillRunning."""
        others = [run_key(run, part) for part in RUN_PARTS if part != "run"]
        if not await self._scripts.run("delete_run", [], more=others, run=run):
            raise StillRunning(run, "not over")
        await self._redis.zrem(RUNS, run)
        await self._announce(run)

    # --- the learner --------------------------------------------------------------------------

    async def take(self, pool: str) -> RunRecord | None:
        """Return the pool's active run. Without an active run, the first run of the queue becomes
        active."""
        while run := await self._scripts.run("take_run", [], pool=pool):
            if (record := await self.get(as_text(run))) is not None:
                # A damaged record may lack the pool.
                record.pool = pool
                return record
            report(f"run {as_text(run)}", "it stands in the queue, and there is no such run")
            await self._scripts.run("compare_delete", [run], more=[pool_key(pool, "active")])
        return None

    async def go_back(
        self, run: str, fencing_token: int, lineage: str, step: int, checkpoint: str
    ) -> None:
        """Set a run back to an earlier checkpoint. The tasks that it trained later are sampled
        again. Raises Fenced."""
        tasks = await self._ledger.trained_after(run, step)
        arguments = [fencing_token, lineage, step, checkpoint, json.dumps(tasks)]
        await self._run_fenced("go_back", run, arguments)
        await self._announce(run)

    async def acquire(self, run: str, lineage: str) -> int:
        """Take over a run under a new lineage. Returns the fencing token that shuts out all other
        learners. Raises KeyError for an unknown run."""
        fencing_token = int(await self._scripts.run("acquire", [lineage], run=run))
        if fencing_token == 0:
            raise KeyError(f"there is no run {run}")
        await self._announce(run)
        return fencing_token

    async def lineages(self, run: str) -> Sequence[tuple[str, int]]:
        """Return (lineage, version it began at) of every start of a learner, oldest first,
        including the runs that this one continues."""
        with reading(f"the lineages of run {run}"):
            texts = await self._redis.lrange(run_key(run, "lineages"), 0, -1)
            return [parse_version_tag(text.decode()) for text in texts]

    async def update(self, run: str, fencing_token: int, fields: dict[str, Any]) -> None:
        """Set fields of the record. Raises Fenced."""
        arguments = [part for name, value in fields.items() for part in (name, text_of(value))]
        await self._run_fenced("update_run", run, [fencing_token, *arguments])
        if fields:
            await self._announce(run)

    async def finish(
        self, run: str, pool: str, state: str, reason: str, *, fencing_token: int | None = None
    ) -> None:
        """End a run, free all that it holds, and let the pool take its next run. Raises Fenced if
        `fencing_token` is an old learner's."""
        await self.set_state(run, state, reason, fencing_token=fencing_token)
        try:
            await self._close(run)
        except Unreadable as error:
            report(f"run {run}", f"{error}: its open tasks and its groups are deleted")
            await self._discard(run)
        await self._scripts.run("compare_delete", [run], more=[pool_key(pool, "active")])
