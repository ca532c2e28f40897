"""Loads versions into one vLLM server, and proves that it serves what it has loaded.

After each load vLLM scores the version's canary, and again after a load that was undone and after a
sleep. Until that is right the worker takes no lease and hands in no group with tokens of the
version. If it is wrong, what the worker holds is sampled again, and the whole weights are loaded
once more; if it stays wrong, the server is given up. A version that is replaced before it was
judged counts as wrong.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redis.exceptions import RedisError

from rollout.vllm.canary_check import CanaryCheck
from rollout.vllm.connection import VLLMUnavailable
from rollout.vllm.server import VLLMFailed
from rollout.vllm.weight_load import (
    MustRestart,
    UpdateMode,
    WeightLoader,
    WeightsUnclear,
    WeightUpdate,
)
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger

log = get_logger(__name__)

LOADS = 2
"""Of one version, before a server that serves other weights is given up."""
UNCLEAR_LIMIT = 3
"""Loads of unclear outcome in a row, after which the server is restarted."""


class WrongWeights(VLLMFailed):
    """vLLM serves other weights than it has loaded, also after it has loaded them once more."""

    def __init__(self, problem: str, ever_right: bool) -> None:
        """`ever_right`: whether this server has served a version rightly."""
        super().__init__(problem)
        self.ever_right = ever_right


class ServedWeights:
    """What the server behind `loader` serves."""

    def __init__(
        self,
        loader: WeightLoader,
        mode: UpdateMode,
        canary: CanaryCheck,
        changed: Callable[[], None],
        distrust: Callable[[str], Awaitable[None]],
    ) -> None:
        """`mode`, `changed`, `distrust`: see `Follower`."""
        self._loader = loader
        self._mode: UpdateMode = mode
        self._canary = canary
        self._changed = changed
        self._distrust = distrust
        self.lock = asyncio.Lock()
        """Held while a version is loaded or judged."""
        self._newest: WeightManifest | None = None
        """The version that vLLM has loaded last, unless it was found to be another one."""
        self._scored = False
        """Whether it was, since the load."""
        self._ever_right = False
        self.live: WeightManifest | None = None
        """The last version that vLLM was found to serve; None if it no longer does."""
        self.loaded: WeightManifest | None = None
        """The same, but kept: the server puts it back if a load breaks."""
        self.problem = ""
        """Why none is live, where a load or a proof has failed."""

    @property
    def proven(self) -> bool:
        """Whether vLLM was found to serve the live version, and nothing has put it in doubt."""
        return self.live is not None and self._loader.proven.is_set()

    async def until_proven(self, tags: list[str]) -> None:
        """Return at once, or, if the version that was loaded last is in `tags`, when vLLM was found
        to serve it. Cancelled if it serves another one (`distrust`)."""
        if self._loader.live in tags:
            await self._loader.proven.wait()

    async def load(self, update: WeightUpdate, manifest: WeightManifest) -> float:
        """Load, under `lock`, until vLLM serves the version. Returns seconds paused. Raises
        LoadRefused, VLLMUnavailable, and VLLMFailed if the server must be restarted."""
        try:
            await self._judge()
        except VLLMUnavailable as error:
            # After the load nobody can say what groups in flight were sampled by.
            await self._distrusted(f"the version served could not be scored: {error}")
        for _ in range(LOADS):
            # Nothing is changed in place of what nobody knows: what was wrong would stay.
            known = self._newest is not None
            paused = await self._load(update if known else replace(update, patch=""))
            self._newest, self._scored = manifest, False
            problem = await self._judge()
            if not problem:
                self._ever_right = True
                return paused
        raise WrongWeights(problem, self._ever_right)

    async def prove_again(self) -> None:
        """Judge the version that is served, for ever, whenever something else than its load, which
        has it judged itself, has put it in doubt."""
        while True:
            await self._loader.doubted.wait()
            try:
                async with self.lock:
                    self._loader.doubted.clear()
                    # A load has judged its own version, and says itself when it is done.
                    judged = self._loader.proven.is_set()
                    await self._judge()
            except (RedisError, OSError) as error:
                # VLLMUnavailable is an OSError, too.
                log.warning("what vLLM serves is still in doubt", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 2.0))
            else:
                if not judged:
                    self._changed()

    async def _judge(self) -> str:
        """Why vLLM does not serve the version that it has loaded, if it does not: what was sampled
        is then released. Asks only where that is not known. Raises VLLMUnavailable."""
        loader = self._loader
        while self._newest is not None and not loader.proven.is_set():
            loader.doubted.clear()
            first, self._scored = not self._scored, True
            try:
                problem = await self._canary.problem(self._newest, first)
            except VLLMUnavailable:
                loader.doubted.set()
                raise
            if problem:
                return await self._distrusted(problem)
            if not loader.doubted.is_set():
                loader.proven.set()
                self.live = self.loaded = self._newest
                self.problem = ""
        return ""

    async def _distrusted(self, problem: str) -> str:
        """Release what was sampled, and serve nothing until the next load. Returns the problem."""
        self._newest = self.live = None
        self.problem = problem
        self._changed()
        log.error("what vLLM serves is not trusted", problem=problem)
        await self._distrust(problem)
        return problem

    async def _load(self, update: WeightUpdate) -> float:
        for _ in range(UNCLEAR_LIMIT):
            try:
                return await self._loader.load(update, self._mode)
            except MustRestart as error:
                raise VLLMFailed(str(error)) from error
            except (WeightsUnclear, VLLMUnavailable) as error:
                # The server is paused or hangs: nothing is sampled, so try again at once.
                self.live = None
                self.problem = str(error)
                log.warning("weights unclear", error=str(error))
        raise VLLMFailed(
            f"vLLM could not be brought to {update.tag} in {UNCLEAR_LIMIT} tries: {self.problem}"
        )
