"""Loads versions into one vLLM server, and proves that it serves what it has loaded.

After each load, and after a sleep, vLLM scores the version's canary. Until the canary is right, the
worker leases nothing, and groups with tokens of the version wait. If the canary is wrong, the
worker's groups are sampled again, and the whole version is loaded once more. After LOADS loads the
server is given up. A version that is replaced before it was judged counts as wrong.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redis.exceptions import RedisError

from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.weight_loader import (
    MustRestart,
    UpdateMode,
    WeightLoader,
    WeightsUnclear,
    WeightUpdate,
)
from rollout.vllm.process.server import VLLMFailed
from rollout.vllm.weights.canary_check import CanaryCheck
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger

log = get_logger(__name__)

LOADS = 3
"""Loads of one version that break, or leave other weights, before the server is restarted."""


class ServedWeights:
    """Loads versions into one server, and knows which version the server was proven to serve."""

    def __init__(
        self,
        loader: WeightLoader,
        mode: UpdateMode,
        canary: CanaryCheck,
        changed: Callable[[], None],
        distrust: Callable[[str], Awaitable[None]],
    ) -> None:
        """`mode`: see `WeightLoader.load`. `changed` is called when the live version or its health
        may have changed. `distrust` is called with the problem when vLLM serves wrong weights, and
        releases everything that it has sampled."""
        self.loader = loader
        self._mode: UpdateMode = mode
        self.canary = canary
        self.changed = changed
        self._distrust = distrust
        self.lock = asyncio.Lock()
        """Held while a version is loaded or judged."""
        self._newest: WeightManifest | None = None
        """The version that was loaded last, unless vLLM was found to serve another one."""
        self.live: WeightManifest | None = None
        """The last version that vLLM was found to serve; None if it no longer does."""
        self.problem = ""
        """Why no version is live, if a load or a proof has failed."""

    @property
    def proven(self) -> bool:
        """Whether vLLM was found to serve the live version, and nothing has put that in doubt."""
        return self.live is not None and self.loader.proven.is_set()

    async def until_proven(self, tags: list[str]) -> None:
        """If the version that was loaded last is in `tags`, wait until vLLM was found to serve it.
        The caller is cancelled if vLLM serves another one (`distrust`)."""
        if self.loader.live in tags:
            await self.loader.proven.wait()

    async def load(self, update: WeightUpdate, manifest: WeightManifest) -> float:
        """Load under `lock` until vLLM serves the version. Returns seconds paused. Raises
        LoadRefused, VLLMUnavailable, and VLLMFailed if the server must be restarted."""
        try:
            await self._judge()
        except VLLMUnavailable as error:
            # After the load nobody can tell which weights sampled the groups in flight.
            await self._distrusted(f"the version served could not be scored: {error}")
        for _ in range(LOADS):
            # A delta is never applied to unknown weights: load the whole version instead.
            known = self._newest is not None
            try:
                paused = await self.loader.load(
                    update if known else replace(update, patch=""), self._mode
                )
            except MustRestart as error:
                raise VLLMFailed(str(error)) from error
            except (WeightsUnclear, VLLMUnavailable) as error:
                # The server is paused or hangs and samples nothing, so try again at once.
                self._newest = self.live = None
                self.problem = str(error)
                log.warning("weights unclear", error=str(error))
                continue
            self._newest = manifest
            if not await self._judge():
                return paused
        problem = f"vLLM could not be brought to {update.tag} in {LOADS} loads: {self.problem}"
        raise VLLMFailed(problem)

    async def prove_again(self) -> None:
        """Judge the served version whenever a sleep has put it in doubt. Never returns."""
        while True:
            await self.loader.doubted.wait()
            try:
                async with self.lock:
                    self.loader.doubted.clear()
                    # A load judges its own version, and reports when it is done.
                    judged = self.loader.proven.is_set()
                    await self._judge()
            except (RedisError, OSError) as error:
                # VLLMUnavailable is an OSError, too.
                log.warning("what vLLM serves is still in doubt", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 2.0))
            else:
                if not judged:
                    self.changed()

    async def _judge(self) -> str:
        """Return why vLLM does not serve the version that it has loaded, or ''. Scores the canary
        only if that is in doubt. Wrong weights release what was sampled. Raises VLLMUnavailable."""
        loader = self.loader
        while self._newest is not None and not loader.proven.is_set():
            loader.doubted.clear()
            try:
                problem = await self.canary.problem(self._newest)
            except VLLMUnavailable:
                loader.doubted.set()
                raise
            if problem:
                return await self._distrusted(problem)
            if not loader.doubted.is_set():
                loader.proven.set()
                self.live = self._newest
                self.problem = ""
        return ""

    async def _distrusted(self, problem: str) -> str:
        """Release what was sampled, and serve nothing until the next load. Returns the problem."""
        self._newest = self.live = None
        self.problem = problem
        self.changed()
        log.error("what vLLM serves is not trusted", problem=problem)
        await self._distrust(problem)
        return problem
