"""Sends a worker's heartbeats: its record, with the load of its host and the state of its work."""

import asyncio
import itertools
import os
import time
from typing import Protocol

from redis.exceptions import RedisError

from rollout.settings import RolloutSettings
from rollout.vllm.process.serving import Serving
from services.contracts.records import HostLoad, WorkerRecord
from services.runtime.gpus import gpu_loads, installed_device
from services.runtime.host_load import IdleCores, free_memory, memory_of, total_memory, vllm_cores
from services.runtime.logs import get_logger
from services.store import Store, Unreadable
from services.store.unreadable import report

log = get_logger(__name__)

HEARTBEAT_SECONDS = 1.0
HOST_LOAD_EVERY = 10
"""Heartbeats between two measurements of the load of host and GPUs."""


class DescribedWork(Protocol):
    """The present work of a worker."""

    def describe(self, record: WorkerRecord) -> None:
        """Write the state of the work into the heartbeat `record`."""


class Heartbeat:
    """Sends the heartbeats of one rollout process."""

    def __init__(
        self, settings: RolloutSettings, store: Store, record: WorkerRecord, serving: Serving
    ) -> None:
        self._settings, self._store, self._record = settings, store, record
        self._serving = serving
        self.worker: DescribedWork | None = None
        """The work on the present run, or of serving finished runs."""

    async def run(self) -> None:
        cores = vllm_cores()
        idle = IdleCores(cores) if installed_device() == "cpu" else None
        logged = ""
        for beat in itertools.count():
            try:
                if idle is not None and beat % HOST_LOAD_EVERY == HOST_LOAD_EVERY - 1:
                    self._record.host_load = HostLoad(
                        cores=len(cores),
                        idle_cores=round(idle.since_last(), 1),
                        memory=await asyncio.to_thread(memory_of, os.getpid()),
                        free_memory=free_memory(),
                        total_memory=total_memory(),
                    )
                if self._record.devices and beat % HOST_LOAD_EVERY == 0:
                    self._record.gpu_loads = await asyncio.to_thread(
                        gpu_loads, self._record.devices
                    )
                await self.send()
                if self._settings.alive_file is not None:
                    self._settings.alive_file.write_text(f"{self._record.state}\n")
            except (RedisError, OSError):
                pass
            except Exception as error:
                # The learner deletes files that no heartbeat names.
                if repr(error) != logged:
                    logged = repr(error)
                    log.exception("a heartbeat failed")
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def send(self) -> None:
        """Send a heartbeat. Raises RedisError."""
        record = self._record
        record.heartbeat = time.time()
        self._serving.describe(record)
        record.groups_in_flight = record.scoring = record.evaluation_rows = 0
        record.tokens_per_second, record.oldest = 0.0, None
        record.version = record.lineage = record.loading = None
        record.files, record.models = [], []
        if self.worker is not None:
            self.worker.describe(record)
        try:
            await self._store.workers.heartbeat(record)
        except Unreadable as error:
            # The pool's records are unreadable, so no run is at fault.
            report(f"pool {record.pool}", str(error))
