"""The steps that hypothesis chooses from, and what must hold after each."""

import asyncio
import itertools
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from redis.asyncio import Redis

from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.records import DatasetRecord
from services.contracts.weights import WeightManifest, version_tag
from services.store import Fenced, Store
from services.store.errors import StreamFull
from services.store.keys import run_key
from tests.integration.store.model import (
    BATCH,
    ETA,
    MAX_FILTERED,
    MAX_STEPS,
    RESERVE,
    STALE_LIMIT,
    TRIES,
    Attempt,
    Model,
)
from tests.integration.store.scene import MINUTE, record, segment

NAMES = itertools.count()
ENDINGS = ("complete", "complete", "drop", "filter_group", "release", "set_aside", "set_aside")


class StoreMachine(RuleBasedStateMachine):
    """Does one thing to the store and to the model in each rule, and compares their results."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.redis: Any = Redis.from_url(self.url)
        self.store = Store.from_url(self.url)
        self.attempts: list[Attempt] = []
        self.epochs: list[int] = []
        self.entries: dict[int, str] = {}
        """Stream entry of each group that the learner has read, by position."""
        self.highest = 0
        self.failed = False
        self.calm = 0
        """Steps since a learner started: without a minimum, nothing would ever be trained."""

    def do(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.do(self.redis.aclose())
        self.loop.close()

    @initialize(rows=st.integers(1, 5), budget=st.sampled_from([15, 45, 10_000]))
    def submit(self, rows: int, budget: int) -> None:
        self.model = Model(rows, budget)
        self.dataset = f"data{next(NAMES)}"
        self.do(self.store.datasets.add(self._dataset(rows)))
        self._submit(None)
        self._take_over()

    def _dataset(self, rows: int) -> DatasetRecord:
        return DatasetRecord(
            id=self.dataset, name=self.dataset, rows=rows, created=1.0, segments=[segment(rows)]
        )

    def _submit(self, before: str | None) -> None:
        self.run = f"run{next(NAMES)}"
        fields = {"batch": BATCH, "eta": ETA, "max_steps": MAX_STEPS, "budget": self.model.budget}
        fields["max_filtered"] = MAX_FILTERED
        given = record(self.run, dataset=self.dataset, resume_from=before, **fields)
        self.do(self.store.runs.submit(given))

    def _take_over(self) -> None:
        lineage = f"l{next(NAMES)}"
        self.epochs.append(self.do(self.store.runs.acquire(self.run, lineage)))
        self.model.take_over(lineage)
        self.entries = {}
        self._note(self.do(self.store.trajectories.pending(self.run)))
        self.do(self.store.runs.set_state(self.run, "running", "", fencing_token=self.epochs[-1]))

    def _note(self, groups: list[Any]) -> None:
        self.entries |= {int(g.task.partition(":")[0]): g.entry for g in groups}

    def _read(self) -> None:
        """Let the learner read until it has every group that the model has."""
        while not set(self.model.stream) <= set(self.entries):
            self._note(self.do(self.store.trajectories.read(self.run, wait=1)))

    def _task(self, position: int) -> str:
        return ":".join(map(str, (position, *self.model.row_of[position])))

    # --- workers --------------------------------------------------------------------------------

    @precondition(lambda self: not self.failed)
    @rule(count=st.integers(1, 6), behind=st.integers(0, 1))
    def lease(self, count: int, behind: int) -> None:
        self._lease(count, behind)

    def _work(self, count: int, behind: int, bytes: int) -> None:
        """Complete new leases; older leases straggle on."""
        for attempt in self._lease(count, behind):
            self._complete(attempt, bytes)

    def _lease(self, count: int, behind: int) -> list[Attempt]:
        model = self.model
        version = max(model.version - behind, model.committed)
        granted = self.do(
            self.store.tasks.lease(
                self.run,
                worker="w",
                lineage=model.lineage,
                version=version,
                count=count,
                ttl=MINUTE,
                reserve_bytes=RESERVE,
            )
        )
        refusal, positions = model.lease(count, version)
        assert granted.refusal == refusal
        assert [lease.task for lease in granted.leases] == positions
        attempts = []
        for lease in granted.leases:
            where = (lease.position.epoch, lease.position.rows, lease.position.index)
            assert where == model.row_of[lease.task]
            attempt, mark = model.begin(lease.attempt, lease.task, version)
            assert lease.partial == mark
            attempts.append(attempt)
        self.attempts += attempts
        self.failed = refusal in ("exhausted", "filtered_group")
        self.highest = max(self.highest, version)
        return attempts

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), ending=st.sampled_from(ENDINGS))
    def an_attempt_ends(self, data: st.DataObject, ending: str) -> None:
        attempt, tasks = self._any_attempt(data), self.store.tasks
        if ending == "complete":
            self._complete(attempt, data.draw(st.integers(1, RESERVE)))
        elif ending == "drop":
            dropped = self.do(tasks.drop(self.run, attempt.name, "bad_reference", ""))
            assert dropped == self.model.drop(attempt, "bad_reference")
        elif ending == "filter_group":
            self._filter_group(attempt)
        elif ending == "set_aside":
            blob, oldest = b"x" * data.draw(st.integers(1, RESERVE)), version_tag(*attempt.version)
            kept = self.do(tasks.set_aside(self.run, attempt.name, oldest, blob))
            assert kept == self.model.set_aside(attempt, len(blob))
        else:
            cause = data.draw(st.sampled_from(["", "verifier_error", "refused"]))
            given = tasks.release(self.run, [attempt.name], cause=cause, limit=TRIES)
            assert self.do(given) == self.model.release(attempt, cause)

    @precondition(lambda self: not self.failed)
    @rule(count=st.integers(1, 2 * BATCH))
    def groups_are_filtered(self, count: int) -> None:
        """Filter the groups of new leases, one after the other."""
        for attempt in self._lease(count, 0):
            self._filter_group(attempt)

    def _filter_group(self, attempt: Attempt) -> None:
        left = self.do(self.store.tasks.filter_group(self.run, attempt.name, "", 0.5))
        assert left == self.model.filter_group(attempt)

    def _complete(self, attempt: Attempt, bytes: int) -> None:
        blob = b"x" * bytes
        lineage, version = attempt.version
        expected = self.model.complete(attempt, len(blob))
        tasks = self.store.tasks
        where: dict[str, Any] = {"min_version": version, "lineage": lineage}
        room = self.do(tasks.stream_takes(self.run, attempt.name, size=bytes, **where))
        call = tasks.complete(
            self.run, attempt.name, blob=blob, lengths=GroupLengths(1, (1,)), **where
        )
        if expected is None:
            assert not room
            with pytest.raises(StreamFull):
                self.do(call)
        else:
            assert room or attempt.lapsed
            assert self.do(call) == expected

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, MINUTE]))
    def time_passes_or_an_attempt_is_renewed(self, data: st.DataObject, seconds: float) -> None:
        """Move an attempt's deadline; 0 seconds: its worker has died, or its vLLM hangs."""
        attempt = self._any_attempt(data)
        lost = self.do(self.store.tasks.renew(self.run, [attempt.name], seconds))
        held = self.model.held.get(attempt.name)
        assert lost == ([] if held else [attempt.name])
        if held:
            held.lapsed = seconds == 0

    def _any_attempt(self, data: st.DataObject) -> Attempt:
        """Choose an attempt: mostly a held one, sometimes one that has ended."""
        held = list(self.model.held.values())
        pool = held if held and data.draw(st.integers(0, 3)) else self.attempts
        return pool[data.draw(st.integers(0, len(pool) - 1))]

    # --- the learner ----------------------------------------------------------------------------

    @precondition(lambda self: self.model.version < MAX_STEPS and not self.failed)
    @rule(steps=st.integers(1, 3), work=st.booleans())
    def work_and_train(self, steps: int, work: bool) -> None:
        """Run undisturbed for some steps."""
        for _ in range(min(steps, MAX_STEPS - self.model.version)):
            if work and not self.failed:
                self._work(2 * BATCH, 0, RESERVE)
            self._train()

    def _train(self) -> None:
        """Train a recorded batch again, verbatim; without one, requeue stale groups and plan a new
        batch."""
        model, fencing_token, step = self.model, self.epochs[-1], self.model.version + 1
        self._read()
        if step not in model.plans:
            stale = model.stale()
            entries = [self.entries.pop(position) for position in stale]
            requeue = self.store.trajectories.requeue
            dropped = self.do(requeue(self.run, fencing_token, entries, limit=STALE_LIMIT))
            assert dropped == sum(model.requeue(position) for position in stale)
            batch = [group.position for group in model.waiting[:BATCH]]
            if len(batch) < BATCH:
                return
            pairs = [(self.entries[p], self._task(p)) for p in batch]
            self.do(self.store.trajectories.plan(self.run, fencing_token, step, pairs))
            model.plan(batch)
        positions = model.plans[step]
        payloads = self.do(self.store.trajectories.payloads(self.run, positions))
        assert [len(blob) for blob in payloads] == [model.stream[p].bytes for p in positions]
        model.train()
        manifest = WeightManifest(self.run, step, model.lineage, "full", [], 1, "m")
        self.do(self.store.weights.publish(fencing_token, manifest, keep=4))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit the newest, the current or an older checkpoint."""
        model = self.model
        back = data.draw(st.integers(0, 2))
        step = max(model.version - back, model.committed - 1, 0)
        acknowledged = self.do(
            self.store.trajectories.commit(
                self.run, self.epochs[-1], model.lineage, step, f"step-{step}"
            )
        )
        assert acknowledged == model.commit(step)

    @precondition(lambda self: self.calm > 4 or self.failed)
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """Disturb the run, rarely enough that something is trained."""
        self.calm = 0
        happens = [self._take_over, self._wake_old, self._append, self._continue]
        if self.failed:
            self._continue()
        else:
            data.draw(st.sampled_from(happens))()

    def _wake_old(self) -> None:
        """Check that learners that were replaced while they slept can change nothing."""
        entries, step = list(self.entries.values()), self.model.version + 1
        for old in self.epochs[:-1]:
            for call in (
                self.store.trajectories.commit(self.run, old, "old", MAX_STEPS, "old"),
                self.store.trajectories.plan(self.run, old, step, []),
                self.store.trajectories.requeue(self.run, old, entries, limit=1),
                self.store.runs.finish(self.run, "default", "failed", "", fencing_token=old),
            ):
                with pytest.raises(Fenced):
                    self.do(call)

    def _append(self) -> None:
        self.do(self.store.datasets.append(self.dataset, segment(2)))
        self.model.dataset_rows += 2

    def _continue(self) -> None:
        """Cancel the run and resume it as another one."""
        before, self.failed = self.run, False
        finish = self.store.runs.finish
        self.do(finish(before, "default", "cancelled", "", fencing_token=self.epochs[-1]))
        self._submit(before)
        # Epochs count from 1 in the new run.
        self.epochs = []
        self.model.continue_()
        self._take_over()

    # --- what must hold after every step --------------------------------------------------------

    @invariant()
    def time_goes_on(self) -> None:
        self.calm += 1

    @invariant()
    def everything_is_where_it_belongs(self) -> None:
        model, open_ = self.model, self.model.open
        ended = set(model.trained) | set(model.dropped)
        assert not set(model.trained) & set(model.dropped)
        assert open_ | ended == set(range(model.cursor))
        assert not open_ & ended
        found = self.do(self.store.ledger.audit(self.run))
        assert (found.lost, found.duplicated, found.problems) == (0, 0, [])
        assert found.tasks == model.cursor
        assert found.trained == len(model.trained)
        assert sum(found.dropped.values()) == len(model.dropped)
        assert found.in_flight == len(open_)
        assert found.max_staleness_seen == model.max_staleness <= ETA

    @invariant()
    def admission_is_bounded(self) -> None:
        model = self.model
        taken = model.committed * BATCH + len(model.stream) + len(model.held)
        assert taken <= min(self.highest + ETA + 1, MAX_STEPS) * BATCH

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        model = self.model
        parts = self.do(self._look())
        stream, sizes, partials, bytes, attempts, held, returned, plans = parts
        assert stream == sizes == {p: group.bytes for p, group in model.stream.items()}
        left = {
            p: (group.bytes, version_tag(*group.version)) for p, group in model.partials.items()
        }
        assert partials == left
        assert bytes == model.bytes
        assert attempts == set(held)
        assert held == {name: a.position for name, a in model.held.items()}
        assert returned == sorted(model.returned)
        assert plans == model.plans

    async def _look(self) -> tuple[Any, ...]:
        def key(part: str) -> str:
            return run_key(self.run, part)

        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.xrange(key("groups"))
            for part in ("blobs", "held", "plans", "partials"):
                pipe.hgetall(key(part))
            for part in ("attempts", "returned"):
                pipe.zrange(key(part), 0, -1)
            pipe.get(key("bytes"))
            groups, blobs, held, plans, partials, attempts, returned, bytes = await pipe.execute()
        return (
            {_position(said[b"task"]): int(said[b"bytes"]) for _, said in groups},
            {int(position): len(blob) for position, blob in blobs.items()},
            {
                int(name): (len(blob), partials[name + b":oldest"].decode())
                for name, blob in partials.items()
                if name.isdigit()
            },
            int(bytes or 0),
            {name.decode() for name in attempts},
            {name.decode(): _position(said) for name, said in held.items()},
            [_position(task) for task in returned],
            {
                int(step): [_position(task.encode()) for _, task in json.loads(plan)["pairs"]]
                for step, plan in plans.items()
            },
        )


def _position(task: bytes) -> int:
    return int(task.split(b":")[0])
