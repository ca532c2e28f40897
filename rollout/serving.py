"""The vLLM server of a rollout process: kept when the next run has the same fingerprint (only the
weights change), and replaced otherwise."""

import asyncio
import time
from pathlib import Path

from rollout.leftovers import forget_logs, log_of
from rollout.policy import PolicyClient
from rollout.settings import RolloutSettings
from rollout.support import server_flags
from rollout.telling import Telling
from rollout.vllm_options import fingerprint, with_memory
from rollout.vllm_server import VLLMServer
from services.contracts.config import RLConfig
from services.contracts.records import WorkerRecord
from services.gpus import installed_device
from services.store import Store


class Serving:
    """At most one server at a time, with its client."""

    def __init__(self, settings: RolloutSettings, record: WorkerRecord, store: Store) -> None:
        self._settings = settings
        self._record = record
        self._store = store
        self._server: VLLMServer | None = None
        self._policy: PolicyClient | None = None
        self._fingerprint = ""

    async def serve(
        self, config: RLConfig, model: Path, telling: Telling
    ) -> tuple[PolicyClient, VLLMServer]:
        """A server for the run: the one that is there, if it fits, else a new one. Raises as
        `VLLMServer.start` does, and RedisError."""
        options = with_memory(config.served, self._settings.vllm_gpu_memory_utilization)
        dtype = config.model.dtype
        device = installed_device()
        more = server_flags(config.sampling, device == "cpu")
        wanted = await asyncio.to_thread(fingerprint, model, options, dtype, more)
        if self._server is not None and self._policy is not None:
            if wanted == self._fingerprint and self._server.alive:
                await telling.state("ready", "the vLLM of the run before it serves this one, too")
                return self._policy, self._server
            await self.stop()
        self._record.state = "starting"
        limit = f"{options.startup_seconds:g} s (rollout.vllm.startup_seconds)"
        await telling.state("starting", f"vLLM starts; at most {limit}")
        logs = self._settings.data / "logs"
        living = {worker.id for worker in await self._store.workers.list()} | {self._record.id}
        await asyncio.to_thread(forget_logs, logs, living)
        server = VLLMServer(
            model,
            options,
            dtype,
            device,
            log_file=log_of(logs, self._record.id),
            kv_cache_gib=self._settings.vllm_kv_cache_gib,
            command=self._settings.vllm_command,
            more=more,
        )
        began = time.monotonic()
        policy = await server.start()
        self._server, self._policy, self._fingerprint = server, policy, wanted
        await telling.state("ready", f"vLLM serves after {time.monotonic() - began:.0f} s")
        return policy, server

    async def stop(self) -> None:
        """End the server, if there is one."""
        server, policy = self._server, self._policy
        self._server = self._policy = None
        if policy is not None:
            await policy.close()
        if server is not None:
            await server.stop()
