"""A run in the store, and short calls for what workers and learners do to it.

Nothing waits for time: a lease of 0 seconds has lapsed at once, and `lapse` moves a held lease's
deadline to now.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.trajectory import GroupHeader, TrajectoryGroup, encode
from services.contracts.records import DatasetRecord, DatasetSegment, RunRecord, RunState
from services.contracts.weights import WeightFile, WeightManifest
from services.store import Store
from services.store.keys import run_key
from services.store.work.tasks import Granted, Lease, Passed
from services.store.work.trajectories import StreamGroup

RUN = "r1"
MINUTE = 60.0
ROOMY = 1 << 30


def segment(rows: int) -> DatasetSegment:
    return DatasetSegment(file="datasets/d/0.arrow", rows=rows, bytes=1, xxh3="0")


def record(run: str = RUN, **fields: Any) -> RunRecord:
    """Return a run with batches of `batch` tasks and η = `eta`; with `max_filtered`, dynamic
    sampling."""
    batch, eta = fields.pop("batch", 2), fields.pop("eta", 0)
    limit = fields.pop("max_filtered", None)
    dynamic = {} if limit is None else {"dynamic_sampling": {"max_filtered": limit}}
    config = {
        "data": {"dataset": fields.pop("dataset", "d")},
        "algorithm": {"prompts_per_step": batch, **dynamic},
        "rollout": {"max_staleness": eta, "stream_bytes": fields.pop("budget", ROOMY)},
    }
    given: dict[str, Any] = {
        "id": run,
        "name": run,
        "pool": "default",
        "kind": "rl",
        "state": RunState.QUEUED,
        "config": config,
        "created": 1.0,
        "max_steps": 10,
    }
    return RunRecord(**given | fields)


@dataclass
class Scene:
    """A run and its learner. `start` makes a run that leases; `lineage`, `version` and
    `fencing_token` are its learner's."""

    store: Store
    raw: Any  # redis-py types replies as str or bytes; ours are bytes
    run: str = RUN
    lineage: str = ""
    version: int = 0
    fencing_token: int = 0
    read: dict[str, StreamGroup] = field(default_factory=dict)
    """Groups that the learner has read and neither committed nor requeued, by task."""

    async def dataset(self, rows: int, name: str = "d") -> None:
        await self.store.datasets.add(
            DatasetRecord(id=name, name=name, rows=rows, created=1.0, segments=[segment(rows)])
        )

    async def start(self, rows: int = 100, **fields: Any) -> None:
        """Make a dataset, a run on it, and a learner that has taken it over."""
        await self.dataset(rows)
        await self.store.runs.submit(record(self.run, **fields))
        await self.take_over("aaa")

    async def take_over(self, lineage: str) -> None:
        """Start a learner: the version goes back to the checkpoint's."""
        self.lineage = lineage
        self.fencing_token = await self.store.runs.acquire(self.run, lineage)
        run = await self.store.runs.get(self.run)
        assert run is not None
        self.version = run.committed_step
        self.read = {g.task: g for g in await self.store.trajectories.pending(self.run)}
        await self.store.runs.set_state(self.run, "running", "", fencing_token=self.fencing_token)

    async def lease(self, count: int, ttl: float = MINUTE, **fields: Any) -> Granted:
        given: dict[str, Any] = {
            "version": self.version,
            "lineage": self.lineage,
            "reserve_bytes": 100,
        }
        return await self.store.tasks.lease(
            self.run, worker="w", count=count, ttl=ttl, **given | fields
        )

    async def leased(self, count: int, **fields: Any) -> list[Lease]:
        granted = await self.lease(count, **fields)
        assert len(granted.leases) == count, granted
        return granted.leases

    async def lapse(self, *leases: Lease) -> None:
        await self.store.tasks.renew(self.run, [lease.attempt for lease in leases], 0)

    async def complete(
        self, lease: Lease, blob: bytes = b"group", passed: Passed | None = None
    ) -> bool:
        return await self.store.tasks.complete(
            self.run,
            lease.attempt,
            min_version=self.version,
            lineage=self.lineage,
            blob=blob,
            lengths=GroupLengths(1, (1,)),
            passed=passed,
        )

    async def stream_takes(self, lease: Lease, size: int) -> bool:
        return await self.store.tasks.stream_takes(
            self.run, lease.attempt, min_version=0, lineage=self.lineage, size=size
        )

    def group(self, lease: Lease) -> bytes:
        """Return a whole group of one sample of one token, as a worker completes it."""
        now = time.time()
        header = GroupHeader(
            run=self.run,
            task=lease.task,
            attempt=lease.attempt,
            worker="w",
            row=0,
            lineage=self.lineage,
            tags=[f"{self.lineage}:{self.version}"],
            finish_reasons=["stop"],
            statuses=["correct"],
            rewards=[1.0],
            leased_at=now,
            generated_at=now,
            scored_at=now,
        )
        one = np.ones(1, np.int64)
        group = TrajectoryGroup(
            header, one, one, one, one.astype(bool), np.zeros(1, np.float32),
            np.array([[0, 0, 1, 0]]),
        )  # fmt: skip
        return bytes(encode(group))

    async def finished(self, count: int, blob: bytes = b"group") -> list[StreamGroup]:
        """Lease and complete `count` tasks, and have the learner read them."""
        for lease in await self.leased(count):
            assert await self.complete(lease, blob)
        groups = await self.store.trajectories.read(self.run, wait=1)
        self.read |= {group.task: group for group in groups}
        return groups

    async def plan(self, step: int, groups: list[StreamGroup]) -> list[tuple[str, str]]:
        pairs = [(group.entry, group.task) for group in groups]
        await self.store.trajectories.plan(self.run, self.fencing_token, step, pairs)
        return pairs

    async def commit(self, step: int) -> int:
        self.version = max(self.version, step)
        directory = f"checkpoints/{step}"
        return await self.store.trajectories.commit(
            self.run, self.fencing_token, self.lineage, step, directory
        )

    async def trained(self, step: int, count: int = 2) -> list[StreamGroup]:
        """Run one whole step: lease, complete, plan, commit."""
        groups = await self.finished(count)
        await self.plan(step, groups)
        await self.commit(step)
        return groups

    async def publish(self, version: int) -> None:
        await self.store.weights.publish(self.fencing_token, self.manifest(version), keep=64)
        self.version = version

    def manifest(self, version: int) -> WeightManifest:
        return WeightManifest(
            run=self.run,
            version=version,
            lineage=self.lineage,
            kind="full",
            files=[WeightFile("f", 1, "0" * 16)],
            tensors=1,
            model="m",
        )

    # --- behind the store -----------------------------------------------------------------------

    async def returned(self) -> list[int]:
        tasks = await self.raw.zrange(run_key(self.run, "returned"), 0, -1)
        return [int(task.split(b":")[0]) for task in tasks]

    async def weight(self) -> int:
        return int(await self.raw.get(run_key(self.run, "bytes")) or 0)

    async def payloads(self) -> list[bytes]:
        return sorted(await self.raw.hkeys(run_key(self.run, "blobs")))

    async def tries(self) -> dict[bytes, bytes]:
        return await self.raw.hgetall(run_key(self.run, "tries"))

    async def ledger(self) -> list[dict[str, str]]:
        rows = await self.raw.xrange(run_key(self.run, "ledger"))
        return [{k.decode(): v.decode() for k, v in said.items()} for _, said in rows]


def tasks(leases: list[Lease]) -> list[int]:
    return [lease.task for lease in leases]


def same_ids() -> Callable[[int], str]:
    """Return a replacement of `secrets.token_hex` that repeats its ids after a reset, as a repeated
    call does."""
    ids = (f"{n:016x}" for n in range(100))
    return lambda _: next(ids)
