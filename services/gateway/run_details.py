"""Adds to the summaries of runs what their records do not say: phase, place in the queue, reason of
waiting, time left, size on disk."""

import time
from collections.abc import Sequence
from typing import TypeVar

from services.contracts.records import RunState, RunSummary, WorkerRecord
from services.diagnosis.phase import phase, seconds_left
from services.diagnosis.queue import queued_verdict
from services.gateway.run_file_retention import Sizes
from services.store import Store

R = TypeVar("R", bound=RunSummary)
WORKERS_SECONDS = 1.0
"""Workers that were read are used for this long: they send a heartbeat a second."""


class RunDetails:
    """Describes runs for lists, single answers and streams."""

    def __init__(self, store: Store, sizes: Sizes) -> None:
        self._store, self._sizes = store, sizes
        self._workers: dict[str, tuple[float, list[WorkerRecord]]] = {}

    async def of(self, runs: Sequence[R]) -> list[R]:
        """Return copies of `runs` with what no record has: bytes on the disk, the time left, the
        phase, and of a queued run its place in the queue and why it waits."""
        sizes = await self._sizes.of([run.id for run in runs])
        queued = [run for run in runs if run.state is RunState.QUEUED]
        queues = {
            pool: await self._store.pools.queue(
                pool, [run.id for run in queued if run.pool == pool]
            )
            for pool in {run.pool for run in queued}
        }
        detailed = []
        for run in runs:
            update: dict[str, object] = {
                "disk_bytes": sizes[run.id],
                "eta_seconds": seconds_left(run),
            }
            workers: list[WorkerRecord] = []
            if run.state is RunState.QUEUED:
                position = queues[run.pool].positions.get(run.id)
                update["queue_position"] = None if position is None else position + 1
                if not run.damage:
                    update["reason"] = queued_verdict(run, queues[run.pool])[1]
            elif not run.state.final and run.kind == "rl":
                workers = await self._workers_of(run.pool)
            described = run.model_copy(update=update)
            described.phase = phase(described, workers)
            detailed.append(described)
        return detailed

    async def _workers_of(self, pool: str) -> list[WorkerRecord]:
        read, workers = self._workers.get(pool, (-WORKERS_SECONDS, []))
        if time.monotonic() - read >= WORKERS_SECONDS:
            _, everyone = await self._store.workers.seen(pool)
            workers = [worker for worker in everyone if not worker.serving_only]
            self._workers[pool] = time.monotonic(), workers
        return workers
