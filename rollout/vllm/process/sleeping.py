"""Puts a vLLM server to sleep while the learner uses their GPU, and wakes it afterwards.

A sleeping server keeps its weights in the host's memory, and has no cache. Its requests are
aborted, and resumed from their last token after the sleep. A new version is loaded after the sleep.
"""

import asyncio
import time

from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.process.server import VLLMServer
from services.runtime.gpu_handover import POLL_SECONDS, Handover
from services.runtime.logs import get_logger
from services.runtime.tasks import end

log = get_logger(__name__)


class Sleeper:
    """Puts one server to sleep when the learner asks for the GPU (`handover`)."""

    def __init__(self, policy: PolicyClient, server: VLLMServer, handover: Handover) -> None:
        self._policy, self._server, self._handover = policy, server, handover
        self.problem = ""
        """Why the server was ended; '' if it was not."""
        self._task = asyncio.create_task(self._keep(), name="sleep")

    async def stop(self) -> None:
        """Stop watching. The server stays as it is; if it is being ended, wait for that."""
        await end([self._task])

    def close(self) -> None:
        self._handover.close()

    async def _keep(self) -> None:
        try:
            while True:
                if self._handover.wanted:
                    await self._sleep()
                await asyncio.sleep(POLL_SECONDS)
        except Exception as error:
            self.problem = f"vLLM cannot take turns with the learner on its GPU: {error}"
            log.error("vLLM is ended", reason=self.problem)
            # Asleep or awake, it may hold memory that the learner needs.
            await self._server.stop()
            self._handover.leave()

    async def _sleep(self) -> None:
        began = time.monotonic()
        async with self._policy.weights.asleep():
            fell = time.monotonic()
            self._handover.leave()
            await self._handover.begin_to_sample()
            woken = time.monotonic()
        log.info(
            "vLLM slept while the learner had its GPU",
            seconds=round(woken - fell, 1),
            falling=round(fell - began, 2),
            waking=round(time.monotonic() - woken, 2),
        )
