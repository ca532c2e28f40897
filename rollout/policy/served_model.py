"""One checkpoint that a worker serves: its weights in vLLM, and the loop that answers its calls."""

import asyncio
import time

from rollout.policy.call_loop import PolicyCallLoop
from rollout.work.run_context import RunContext
from services.contracts.served_models import ModelDemand, queue_of
from services.runtime.tasks import end
from services.store import Store


class ServedModel:
    def __init__(self, demand: ModelDemand, context: RunContext, store: Store) -> None:
        self.demand = demand
        queue = queue_of(context.worker, demand.step)
        self.calls = PolicyCallLoop(context, store, queue)
        self._follower, self._adapter = context.follower, context.adapter
        self.tasks = [
            asyncio.create_task(self._follower.follow(), name="keep served weights"),
            asyncio.create_task(self.calls.run(), name="calls of a served model"),
        ]
        self.began = self._used = time.monotonic()

    @property
    def files(self) -> list[str]:
        """Files that this worker needs."""
        return self._follower.files

    @property
    def is_adapter(self) -> bool:
        """Whether it shares vLLM with other adapters."""
        return bool(self._adapter)

    @property
    def idle_seconds(self) -> float:
        """Seconds without an open call."""
        if len(self.calls):
            self._used = time.monotonic()
        return time.monotonic() - self._used

    def check(self) -> None:
        """Raise VLLMFailed if the weights could not be kept."""
        for task in self.tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """Stop answering. Open calls end with a reason."""
        await end(self.tasks)
