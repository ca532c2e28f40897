"""`python -m bench.leasing`: how busy leases keep a large fleet with large groups.

Redis, its scripts, the worker's rules of how much to lease, and the learner's choice of batches are
the product's. Time is simulated: a sequence takes as long as its tokens, a step as long as LEARNER
says. Bytes are simulated, too: payloads and the run's `stream_bytes` are reduced by one factor.
docs/benchmarks.md explains the figures.
"""

import argparse
import asyncio
import heapq
import itertools
import math
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.fleet import COMMIT_EVERY, ENDLESS, LINEAGE, RUN, durable_redis, make_run
from bench.installation import failures
from bench.runner import BenchPart, BenchResults, Figures
from learner.batch.staleness import Ancestry
from learner.coordinate.batch_selection import BatchSelection, WaitingGroup
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from rollout.work.capacity import reserve_bytes, slots, to_lease, widened
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.weights import WeightManifest, version_tag
from services.store import Store
from services.store.errors import StreamFull
from services.store.keys import run_key
from services.store.work.tasks import Lease

STREAM_BYTES = 1 << 20
"""The real limit of the run in Redis."""
PROMPT = 512
TOKEN_BYTES = 8.125
"""On the wire, for a vocabulary of more than 65,536 tokens."""
MEDIAN, SPREAD = 5120, 0.65
"""Lengths are lognormal. SPREAD is sigma between prompts, and again between the answers to one."""
SEQUENCE_RATE = 30.0
"""Tokens a second of each sequence."""
LEARNER = 0.9
"""Seconds to train a batch, over the seconds in which the fleet samples as many tokens."""
LIVE_SECONDS, COMMIT_SECONDS = 10.0, 20.0
"""From a step until workers have its version, and until its checkpoint is durable."""
POLL_SECONDS = 5.0
"""Between two polls of a worker: of its leases, and of the room for a finished group."""
FOREVER = 1e6


@dataclass(frozen=True)
class Fleet:
    """The size of the simulation."""

    workers: int = 56
    sequences: int = 256
    samples: int = 16
    longest: int = 32_768
    prompts_per_step: int = 256
    eta: int = 16
    budget: int = 1 << 30
    """Bytes of the run's groups in Redis, before the reduction."""
    warmup: int = 14
    steps: int = 10

    @property
    def tokens_per_second(self) -> float:
        """The rate of all workers when all sequences are busy."""
        return self.workers * self.sequences * SEQUENCE_RATE


@dataclass
class SimulatedGroup:
    """One lease and its samples."""

    lease: Lease
    version: int
    lengths: list[int]
    unfinished: int


@dataclass
class SimulatedWorker:
    """A rollout worker: vLLM with a queue, and the rules of `rollout.work.capacity`."""

    free: int
    limit: int
    live: int = 0
    generating: int = 0
    waiting: int = 0
    """Finished groups for which Redis has no room."""
    queue: deque[tuple[SimulatedGroup, int]] = field(default_factory=deque)
    unfinished: int = 0


class Simulation:
    """A run of `fleet.warmup` and then `fleet.steps` steps. Call `run` once."""

    def __init__(self, fleet: Fleet, store: Store, raw: Any, fencing_token: int) -> None:
        self.fleet, self._store, self._fencing_token = fleet, store, fencing_token
        self._redis = raw
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._numbers = itertools.count()
        self._slots = slots(fleet.sequences, fleet.samples, None)
        self._workers = [
            SimulatedWorker(fleet.sequences, self._slots) for _ in range(fleet.workers)
        ]
        self._selection = BatchSelection(fleet.prompts_per_step, fleet.eta)
        self._schedule = CheckpointSchedule(COMMIT_EVERY, ENDLESS, fleet.budget)
        self._ancestry = Ancestry(((LINEAGE, 0),))
        self._training = False
        self._busy = 0
        self._since = 0.0
        self._sequence_seconds = 0.0
        self.version = 0
        self.bytes = self.held_back = self.requeued = 0
        """Most bytes in Redis, before the reduction; groups that waited for room; stale groups."""

    async def run(self) -> Figures:
        """Simulate, and return the figures of the steps after the warm-up."""
        for number, worker in enumerate(self._workers):
            self._at(number * POLL_SECONDS / len(self._workers), partial(self._poll, worker))
        await self._until(self.fleet.warmup)
        began, before = self.now, self._counted()
        await self._until(self.fleet.warmup + self.fleet.steps)
        seconds = self.now - began
        share = (self._counted() - before) / seconds / self.fleet.workers / self.fleet.sequences
        return {
            "sequences busy, share": share,
            "most bytes in Redis, share of the limit": self.bytes / self.fleet.budget,
            "groups that waited for room": self.held_back,
            "groups requeued as stale": self.requeued,
            "step, s": seconds / self.fleet.steps,
        }

    async def _until(self, version: int) -> None:
        while self.version < version:
            self.now, _, event = heapq.heappop(self._events)
            await event()

    def _at(self, time: float, event: Callable[[], Coroutine[Any, Any, None]]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _counted(self) -> float:
        """Seconds of busy sequences so far."""
        self._sequence_seconds += self._busy * (self.now - self._since)
        self._since = self.now
        return self._sequence_seconds

    def _reduced(self, size: float) -> int:
        return math.ceil(size * STREAM_BYTES / self.fleet.budget)

    # --- workers --------------------------------------------------------------------------------

    async def _poll(self, worker: SimulatedWorker) -> None:
        sequences, samples = self.fleet.sequences, self.fleet.samples
        worker.limit = widened(
            self._slots, worker.generating, worker.unfinished, sequences, samples
        )
        await self._lease(worker)
        self._at(self.now + POLL_SECONDS, partial(self._poll, worker))

    async def _lease(self, worker: SimulatedWorker) -> None:
        fleet = self.fleet
        count = to_lease(worker.limit, worker.generating, worker.waiting)
        context = PROMPT + fleet.longest
        reserve = reserve_bytes(fleet.samples, 1, fleet.longest, 9, 4 * context)
        granted = await self._store.tasks.lease(
            RUN,
            worker="w",
            lineage=LINEAGE,
            version=worker.live,
            count=count,
            ttl=FOREVER,
            reserve_bytes=self._reduced(reserve),
        )
        for lease in granted.leases:
            lengths = answer_lengths(lease.task, fleet.samples, fleet.longest)
            group = SimulatedGroup(lease, worker.live, lengths, fleet.samples)
            worker.generating += 1
            worker.unfinished += fleet.samples
            worker.queue.extend((group, length) for length in lengths)
        self._begin(worker)

    def _begin(self, worker: SimulatedWorker) -> None:
        self._counted()
        while worker.free and worker.queue:
            group, length = worker.queue.popleft()
            worker.free -= 1
            self._busy += 1
            self._at(self.now + length / SEQUENCE_RATE, partial(self._end, worker, group))

    async def _end(self, worker: SimulatedWorker, group: SimulatedGroup) -> None:
        self._counted()
        worker.free += 1
        worker.unfinished -= 1
        self._busy -= 1
        group.unfinished -= 1
        self._begin(worker)
        if not group.unfinished:
            worker.generating -= 1
            worker.waiting += 1
            await self._hand_in(worker, group)
            await self._lease(worker)

    async def _hand_in(self, worker: SimulatedWorker, group: SimulatedGroup) -> None:
        size = self._reduced(1024 + 128 * len(group.lengths) + TOKEN_BYTES * sum(group.lengths))
        try:
            await self._store.tasks.complete(
                RUN,
                group.lease.attempt,
                min_version=group.version,
                lineage=LINEAGE,
                blob=bytes(size),
                lengths=GroupLengths(PROMPT, tuple(group.lengths)),
            )
        except StreamFull:
            self.held_back += 1
            self._at(self.now + POLL_SECONDS, partial(self._offer, worker, group, size))
            return
        worker.waiting -= 1
        await self._plan()

    async def _offer(self, worker: SimulatedWorker, group: SimulatedGroup, size: int) -> None:
        attempt, version = group.lease.attempt, group.version
        tasks = self._store.tasks
        if await tasks.stream_takes(RUN, attempt, min_version=version, lineage=LINEAGE, size=size):
            await self._hand_in(worker, group)
        else:
            self._at(self.now + POLL_SECONDS, partial(self._offer, worker, group, size))

    # --- the learner ----------------------------------------------------------------------------

    async def _plan(self) -> None:
        """Train the next batch if it is complete."""
        groups = await self._store.trajectories.read(RUN, wait=0)
        self._selection.arrive(
            [
                WaitingGroup(
                    g.entry, g.task, version_tag(g.lineage, g.min_version), g.bytes, g.lengths
                )
                for g in groups
            ]
        )
        held = int(await self._redis.get(run_key(RUN, "bytes")) or 0)
        self.bytes = max(self.bytes, held * self.fleet.budget // STREAM_BYTES)
        if self._training or not self._selection.enough:
            return
        if stale := self._selection.stale(self._ancestry, self.version):
            self.requeued += len(stale)
            entries = [group.entry for group in stale]
            await self._store.trajectories.requeue(RUN, self._fencing_token, entries, limit=99)
        in_flight = await self._store.trajectories.in_flight(RUN, LINEAGE)
        step = self.version + 1
        batch = self._selection.take(self._ancestry, self.version, step, in_flight)
        if batch is None:
            return
        pairs = [(group.entry, group.task) for group in batch]
        await self._store.trajectories.plan(RUN, self._fencing_token, step, pairs)
        self._training = True
        tokens = sum(sum(group.lengths.completions) for group in batch)
        size = sum(group.bytes for group in batch) * self.fleet.budget // STREAM_BYTES
        seconds = LEARNER * tokens / self.fleet.tokens_per_second
        self._at(self.now + seconds, partial(self._trained, step, size))

    async def _trained(self, step: int, size: int) -> None:
        self.version, self._training = step, False
        manifest = WeightManifest(RUN, step, LINEAGE, "full", [], 1, "model")
        await self._store.weights.publish(self._fencing_token, manifest, keep=64)
        self._at(self.now + LIVE_SECONDS, partial(self._comes_live, step))
        self._schedule.trained(size)
        if self._schedule.due(step, busy=False):
            self._schedule.handed_over()
            self._at(self.now + COMMIT_SECONDS, partial(self._commit, step))
        await self._plan()

    async def _commit(self, step: int) -> None:
        groups = self._store.trajectories
        await groups.commit(RUN, self._fencing_token, LINEAGE, step, f"checkpoints/{step}")
        self._selection.committed(step)

    async def _comes_live(self, version: int) -> None:
        for worker in self._workers:
            worker.live = version
            await self._lease(worker)


def answer_lengths(task: int, samples: int, longest: int) -> list[int]:
    """Tokens of each answer to one prompt."""
    source = random.Random(task)
    prompt = source.gauss(0, SPREAD)
    drawn = [MEDIAN * math.exp(prompt + source.gauss(0, SPREAD)) for _ in range(samples)]
    return [max(1, min(longest, round(length))) for length in drawn]


async def simulate(fleet: Fleet, url: str) -> Figures:
    """Simulate one run in the empty Redis at `url`."""
    store, raw = Store.from_url(url), Redis.from_url(url)
    try:
        token = await make_run(
            store, batch=fleet.prompts_per_step, eta=fleet.eta, stream_bytes=STREAM_BYTES
        )
        return await Simulation(fleet, store, raw, token).run()
    finally:
        await store.close()
        await raw.aclose()


def measured(fleet: Fleet) -> Figures:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        durable_redis(Path(folder)) as url,
    ):
        return asyncio.run(simulate(fleet, url))


def run(fleet: Fleet) -> BenchResults:
    results = BenchResults("leasing", asdict(fleet))
    with results.noting(), failures():
        sides = {f"{fleet.workers} workers": partial(measured, fleet)}
        results.measure(BenchPart("leases", sides))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.leasing", description=__doc__)
    parser.add_argument("--workers", type=int, default=Fleet.workers)
    parser.add_argument("--batch", type=int, default=Fleet.prompts_per_step)
    parser.add_argument("--eta", type=int, default=Fleet.eta)
    given = parser.parse_args()
    fleet = Fleet(workers=given.workers, prompts_per_step=given.batch, eta=given.eta)
    return run(fleet).report()


if __name__ == "__main__":
    sys.exit(main())
