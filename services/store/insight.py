"""Gathers the state of a run and its pool for `services.diagnosis.diagnose`. Only reads.

Ages are by Redis' clock, which stream entries and leases carry, corrected by its observed jumps.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from services.contracts.evaluation import EvaluationRequest
from services.contracts.records import PoolLoad, RunRecord, WorkerRecord
from services.contracts.why import (
    ClockJump,
    Flow,
    LearnerHold,
    LiveTraffic,
    OldestTask,
    OpenEvaluation,
    Place,
    Situation,
    seconds_since,
)
from services.store.agents.live import LiveSessions
from services.store.errors import Unreadable
from services.store.keys import pool_key, run_key
from services.store.runs.audit import position
from services.store.runs.events import parsed_event
from services.store.runs.pools import LOCK_SECONDS
from services.store.runs.runs import Runs
from services.store.unreadable import as_text, reading, report
from services.store.work.trajectories import parsed_plans
from services.store.work.workers import Workers

JUMP_SECONDS = 5.0
"""A smaller difference is the time that an answer of Redis may take."""
JUMPS_KEPT = 20
EVENTS = 200
"""Newest events that are read: the last step, the last change of state, the last warnings."""


def lock_token(host: str, pid: int, since: float) -> str:
    """Return a learner's value of its pool's lock: host, process, start, and a random part."""
    return f"{host}:{pid}:{since:.0f}:{secrets.token_hex(8)}"


def parse_hold(token: str, seconds_left: float, now: float) -> LearnerHold:
    """Parse the value of a lock that lapses in `seconds_left` unless it is prolonged."""
    host, *parts = token.split(":")
    pid, since = parts[:2] if len(parts) == 3 and all(map(str.isdigit, parts[:2])) else (None, None)
    return LearnerHold(
        host=host,
        pid=int(pid) if pid else None,
        held_seconds=max(0.0, round(now - int(since), 1)) if since else None,
        prolonged_seconds_ago=max(0.0, round(LOCK_SECONDS - seconds_left, 1)),
    )


class ClockJumps:
    """Finds jumps of Redis' clock against this process' monotonic clock."""

    def __init__(self) -> None:
        self._seen: tuple[float, float] | None = None
        self._jumps: tuple[ClockJump, ...] = ()

    def observe(self, redis: float, monotonic: float) -> tuple[ClockJump, ...]:
        """Return the jumps so far. `redis` and `monotonic` are both clocks now, in seconds."""
        if self._seen is not None:
            expected = self._seen[0] + monotonic - self._seen[1]
            if abs(redis - expected) > JUMP_SECONDS:
                jump = ClockJump(until=expected, by=redis - expected)
                self._jumps = (*self._jumps, jump)[-JUMPS_KEPT:]
        self._seen = redis, monotonic
        return self._jumps


class Insight:
    """Reads the state of a run and its pool."""

    def __init__(self, redis: Any, runs: Runs, workers: Workers, live: LiveSessions) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes
        self._runs = runs
        self._workers = workers
        self._live = live
        self._clock = ClockJumps()

    async def situation(self, run: RunRecord) -> Situation:
        """Return the present state of `run`. O(tasks in flight). Raises Unreadable."""
        with reading(f"what Redis holds of run {run.id}"):
            return await self._situation(run)

    async def _situation(self, run: RunRecord) -> Situation:
        now, workers = await self._sampling(run.pool)
        jumps = self._clock.observe(now, time.monotonic())
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrange(pool_key(run.pool, "queue"), 0, -1)
            pipe.get(pool_key(run.pool, "learner"))
            pipe.pttl(pool_key(run.pool, "learner"))
            queue, token, lock_ms = await pipe.execute()
        waiting = [as_text(id) for id in queue]
        queued = run.id in waiting
        events = await self._redis.xrevrange(run_key(run.id, "events"), count=EVENTS)
        tasks = await self._tasks(run, now, workers, jumps)
        return Situation(
            time=now,
            run=run,
            active=await self._runs.active(run.pool),
            ahead=waiting[: waiting.index(run.id)] if queued else [],
            queued=queued,
            learner=parse_hold(token.decode(), lock_ms / 1000, now) if token else None,
            workers=workers,
            events=[parsed_event(entry, fields) for entry, fields in reversed(events)],
            evaluation=await self._evaluation(run.id),
            traffic=await self._traffic(run),
            jumps=jumps,
            **tasks,
        )

    async def load(self, pool: str) -> PoolLoad:
        """Return the present load of `pool`. Three round trips, or two if no run is active."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(pool_key(pool, "active"))
            pipe.zcard(pool_key(pool, "queue"))
            active, queued = await pipe.execute()
        _, workers = await self._sampling(pool)
        load = PoolLoad(
            pool=pool,
            run=as_text(active) if active else None,
            queued=queued,
            workers=len(workers),
            groups_in_flight=0,
            groups_wanted=0,
        )
        if load.run is None:
            return load
        fields = ("state", "batch", "max_staleness", "max_steps", "committed_step", "version")
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(run_key(load.run, "run"), *fields)
            pipe.xlen(run_key(load.run, "groups"))
            pipe.zcard(run_key(load.run, "attempts"))
            pipe.exists(run_key(load.run, "evaluation"))
            try:
                with reading(f"what Redis holds of run {load.run}"):
                    (state, *numbers), finished, held, evaluation = await pipe.execute()
                    batch, eta, steps, committed, version = (int(text or 0) for text in numbers)
            except Unreadable as error:
                report(f"run {load.run}", str(error))
                return load
        # The same rule as in `lease.lua`.
        admitted = (min(version + eta + 1, steps) - committed) * batch - finished
        wanted = max(admitted, held) if state == b"running" else held
        load.groups_in_flight = held
        load.groups_wanted = max(wanted, int(evaluation))
        return load

    async def _traffic(self, run: RunRecord) -> LiveTraffic | None:
        if run.config.get("data", {}).get("source") != "sessions":
            return None
        return LiveTraffic(**asdict(await self._live.counts(run.id)))

    async def _evaluation(self, run: str) -> OpenEvaluation | None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hgetall(run_key(run, "evaluation"))
            pipe.zcard(run_key(run, "evaluation_attempts"))
            pipe.zrange(run_key(run, "evaluation_seats"), 0, -1)
            pipe.llen(run_key(run, "evaluation_queue"))
            fields, held, seats, waiting = await pipe.execute()
        if b"id" not in fields:
            return None
        text = await self._redis.hget(run_key(run, "evaluation_requests"), fields[b"id"])
        if text is None:  # reported in between
            return None
        with reading(f"the open evaluation of run {run}"):
            request = EvaluationRequest.model_validate_json(text)
            return OpenEvaluation(
                id=request.id,
                name=request.set.name,
                step=request.step,
                version=request.version,
                rows=request.rows,
                answered=int(fields.get(b"answered", 0)),
                held=held,
                workers=[as_text(worker) for worker in seats],
                waiting=waiting,
            )

    async def _sampling(self, pool: str) -> tuple[float, list[WorkerRecord]]:
        """Return Redis' clock, and the workers of a pool that sample for its runs."""
        now, workers = await self._workers.seen(pool)
        return now, [worker for worker in workers if not worker.serving_only]

    async def _tasks(
        self,
        run: RunRecord,
        now: float,
        workers: list[WorkerRecord],
        jumps: tuple[ClockJump, ...],
    ) -> dict[str, Any]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zrange(run_key(run.id, "returned"), 0, -1)
            pipe.zrange(run_key(run.id, "attempts"), 0, -1, withscores=True)
            pipe.hgetall(run_key(run.id, "held"))
            pipe.xrange(run_key(run.id, "groups"))
            pipe.hgetall(run_key(run.id, "plans"))
            pipe.hget(run_key(run.id, "order"), "filtered")
            replies: list[Any] = await pipe.execute()
        returned, attempts, held, groups, plans, filtered = replies
        planned = {entry: step for step, pairs in parsed_plans(plans).items() for entry, _ in pairs}
        steps = [planned.get(entry.decode()) for entry, _ in groups]
        ahead = sorted({step for step in planned.values() if step > run.step})
        flow = Flow(
            returned=len(returned),
            held=len(attempts),
            lapsed=sum(deadline <= now * 1000 for _, deadline in attempts),
            waiting=sum(step is None for step in steps),
            planned=sum(step is not None and step > run.step for step in steps),
            trained=sum(step is not None and step <= run.step for step in steps),
            filtered=int(filtered or 0),
        )
        deadlines = {attempt: deadline / 1000 - now for attempt, deadline in attempts}

        def since(moment: float) -> float:
            return round(seconds_since(moment, now, jumps), 1)

        tasks = [OldestTask(task=position(task.decode()), place="returned") for task in returned]
        tasks += [
            _held(record.decode(), deadlines.get(attempt), workers, since)
            for attempt, record in held.items()
        ]
        tasks += [
            _finished(entry.decode(), fields[b"task"].decode(), step, run.step, since)
            for (entry, fields), step in zip(groups, steps, strict=True)
        ]
        oldest = None
        if tasks and not run.state.final:
            oldest = min(tasks, key=lambda task: (task.place == "trained", task.task))
            tries = await self._redis.hget(run_key(run.id, "tries"), str(oldest.task))
            oldest.failures = json.loads(tries or "{}")
        return {"flow": flow, "planned_step": ahead[0] if ahead else None, "oldest": oldest}


def _held(
    record: str,
    seconds_left: float | None,
    workers: list[WorkerRecord],
    since: Callable[[float], float],
) -> OldestTask:
    """Parse an entry of the hash `held`: task, worker, time of the lease (ms), version, and whether
    the group waits for the stream. `seconds_left` is the time until the lease lapses."""
    task, holder, leased, *_ = record.split(" ")
    number = position(task)
    scoring = any(
        seen.id == holder
        and seen.oldest
        and (seen.oldest.task, seen.oldest.stage) == (number, "scoring")
        for seen in workers
    )
    return OldestTask(
        task=number,
        place="scoring" if scoring else "generating",
        worker=holder,
        seconds=since(int(leased) / 1000),
        lease_seconds_left=None if seconds_left is None else round(seconds_left, 1),
    )


def _finished(
    entry: str, task: str, planned: int | None, trained: int, since: Callable[[float], float]
) -> OldestTask:
    """Describe a finished group. `entry` is its id in the stream, which begins with its time
    (ms)."""
    place: Place = "waiting"
    if planned is not None:
        place = "planned" if planned > trained else "trained"
    age = since(int(entry.partition("-")[0]) / 1000)
    return OldestTask(task=position(task), place=place, step=planned, seconds=age)
