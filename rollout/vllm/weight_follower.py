"""Keeps one vLLM server on the newest published version of one run, and proves that it serves it.

It fetches and verifies the files of a version (docs/weights.md) before it pauses the server, so a
slow disk or network costs no generation. If a version cannot be loaded, the old weights stay, and
the worker is unhealthy (it leases nothing) until a later try succeeds. An evaluation, which needs
answers of one version, pins it: vLLM serves that one, and no other, until it is unpinned.

After each load vLLM scores the version's canary, and again after a load that was undone and after a
sleep. Until that is right the worker takes no lease and hands in no group with tokens of the
version. If it is wrong, what the worker holds is sampled again, and the whole weights are loaded
once more; if it stays wrong, the server is given up. A version that is replaced before it was
judged counts as wrong.

The learner deletes files of old versions, except those in heartbeats: a heartbeat names a file
before the worker fetches it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from redis.exceptions import RedisError

from rollout.vllm.canary_check import CanaryCheck
from rollout.vllm.client import PolicyClient
from rollout.vllm.connection import VLLMUnavailable
from rollout.vllm.server import VLLMFailed
from rollout.vllm.staging import Staging
from rollout.vllm.weight_cache import WeightFiles
from rollout.vllm.weight_load import (
    LoadRefused,
    MustRestart,
    UpdateMode,
    WeightsUnclear,
    WeightUpdate,
)
from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store
from services.volume import DamagedFile, KeyRefused, Volume

log = get_logger(__name__)

LOADS = 2
"""Of one version, before a server that serves other weights is given up."""
UNCLEAR_LIMIT = 3
"""Loads of unclear outcome in a row, after which the server is restarted."""
LONGEST_BACKOFF = 10.0
PIN_POLL_SECONDS = 0.1

CANNOT_LOAD = (LoadRefused, DamagedFile, FileNotFoundError, SchemaMismatch, KeyRefused)
"""The version is wrong, or this host may not have it: the worker is unhealthy until it can load the
newest one."""


class CannotPin(RuntimeError):
    """This worker cannot load the version that was pinned."""


class WrongWeights(VLLMFailed):
    """vLLM serves other weights than it has loaded, also after it has loaded them once more."""

    def __init__(self, problem: str, ever_right: bool) -> None:
        """`ever_right`: whether this server has served a version rightly."""
        super().__init__(problem)
        self.ever_right = ever_right


@dataclass
class Timings:
    """Of the newest update: seconds from the end of the optimizer step until it was live here, and
    seconds of paused generation."""

    update_seconds: float | None = None
    pause_seconds: float | None = None


class Follower:
    """Follows the manifests of `run` for the server behind `policy`."""

    def __init__(
        self,
        run: str,
        worker: str,
        store: Store,
        volume: Volume,
        policy: PolicyClient,
        mode: UpdateMode,
        staging: Staging,
        canary: CanaryCheck,
        changed: Callable[[], None],
        heartbeat: Callable[[], Awaitable[None]],
        distrust: Callable[[str], Awaitable[None]],
    ) -> None:
        """`mode`: see `PolicyClient.load`. `changed` is called when `live` or `healthy` may have
        changed; `heartbeat` sends one with `files`; `distrust` reports in which way vLLM serves
        other weights, and releases all that it has sampled."""
        self._run = run
        self._store = store
        self._files = WeightFiles(worker, store, volume)
        self._policy = policy
        self._mode: UpdateMode = mode
        self._staging = staging
        self.canary = canary
        self._distrust = distrust
        self._ever_right = False
        self._changed = changed
        self._heartbeat = heartbeat
        self._loads = asyncio.Lock()
        self._pinned: WeightManifest | None = None
        self._pin_error: Exception | None = None
        self._last_entry = "0"
        self._lineage = ""
        self._loading: WeightManifest | None = None
        self._loaded: WeightManifest | None = None
        self._served: WeightManifest | None = None
        """The version that vLLM has loaded last, unless it was found to be another one."""
        self._scored = False
        """Whether it was, since the load."""
        self.live: WeightManifest | None = None
        self.forks: dict[str, int] = {}
        self.timings = Timings()
        self.error = ""

    @property
    def healthy(self) -> bool:
        """Whether a version is live, vLLM was found to serve it, and the last try did not fail."""
        return self.live is not None and not self.error and self._policy.weights.proven.is_set()

    async def until_proven(self, tags: list[str]) -> None:
        """Return at once, or, if the version that was loaded last is in `tags`, when vLLM was found
        to serve it. Cancelled if it serves another one (`distrust`)."""
        if self._policy.weights.live in tags:
            await self._policy.weights.proven.wait()

    @property
    def updating(self) -> bool:
        """Whether the server is paused for an update."""
        return self._policy.weights.updating

    @property
    def sleeping(self) -> bool:
        """Whether the server is asleep, since the learner has its GPU."""
        return self._policy.weights.sleeping

    @property
    def files(self) -> list[str]:
        """Files that the learner must keep: of the version that is being fetched or loaded, and of
        the last loaded one, which the server puts back if a load breaks."""
        needed = [m for m in (self._loading, self._loaded) if m is not None]
        # Both may begin with the same files.
        return list(dict.fromkeys(file.name for manifest in needed for file in manifest.files))

    async def pin(self, manifest: WeightManifest, back: bool) -> bool:
        """Serve this version and no other until `unpin`. Waits for a load that goes on. Without
        `back`, returns False where vLLM serves a newer one, and nothing changes."""
        async with self._loads:
            live = self.live
            newer = live is not None and live.tag != manifest.tag
            if newer and live is not None and live.created > manifest.created and not back:
                return False
            self._pinned, self._pin_error = manifest, None
            return True

    async def until_pinned(self) -> None:
        """Return when the pinned version is live, and vLLM was found to serve it. Raises CannotPin
        where this worker cannot load it; FileNotFoundError where nobody can any more, since its
        files are gone, DamagedFile where one is damaged here, and SchemaMismatch."""
        while not self._serves_pinned:
            error = self._pin_error
            if isinstance(error, FileNotFoundError | DamagedFile | SchemaMismatch):
                raise error
            if error is not None:
                raise CannotPin(str(error)) from error
            await asyncio.sleep(PIN_POLL_SECONDS)

    def unpin(self) -> None:
        """Follow new versions again."""
        if self._pinned is not None:
            self._pinned, self._last_entry = None, "0"

    @property
    def _serves_pinned(self) -> bool:
        pinned = self._pinned
        return (
            pinned is not None
            and self.healthy
            and self.live is not None
            and (self.live.tag == pinned.tag)
        )

    async def follow(self) -> None:
        """Apply versions as they appear, for ever, and prove what is served whenever that is in
        doubt. Raises VLLMFailed if the server must be restarted."""
        loops = [
            asyncio.create_task(self._follow_versions(), name="follow versions"),
            asyncio.create_task(self._prove_again(), name="prove again"),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                loop.result()
        finally:
            await end(loops)

    async def _prove_again(self) -> None:
        """Judge the version that is served whenever something else than its load, which has it
        judged itself, has put it in doubt."""
        while True:
            await self._policy.weights.doubted.wait()
            try:
                async with self._loads:
                    self._policy.weights.doubted.clear()
                    # A load has judged its own version, and says itself when it is done.
                    judged = self._policy.weights.proven.is_set()
                    await self._judge()
            except (RedisError, OSError) as error:
                # VLLMUnavailable is an OSError, too.
                log.warning("what vLLM serves is still in doubt", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 2.0))
            else:
                if not judged:
                    self._changed()

    async def _follow_versions(self) -> None:
        failures = 0
        while True:
            manifest = None
            try:
                manifest = await self._next()
                if manifest is None:
                    continue
                self._loading = manifest
                try:
                    await self._heartbeat()
                    await self._apply(manifest)
                finally:
                    self._loading = None
                failures = 0
            except (*CANNOT_LOAD, RedisError, OSError) as error:
                failures += 1
                # With any other error Redis or the gateway is away: the live version stays right.
                if isinstance(error, CANNOT_LOAD):
                    self._files.read_again()
                    if manifest is not None and manifest is self._pinned:
                        self._pin_error = error
                    else:
                        self.error = str(error)
                self._last_entry = "0"
                log.warning("cannot follow weights", error=str(error))
                self._changed()
                await asyncio.sleep(random.uniform(0.1, min(LONGEST_BACKOFF, 0.5 * 2**failures)))
            else:
                self.error = ""
                self._changed()

    async def _next(self) -> WeightManifest | None:
        """The pinned manifest, or else the newest one, if it is not live; waits some seconds for a
        newer one."""
        if self._pinned is not None:
            if not self._serves_pinned:
                return self._pinned
            await asyncio.sleep(PIN_POLL_SECONDS)
            return None
        found = await self._store.weights.newest_after(self._run, self._last_entry, wait=2.0)
        if found is None:
            return None
        self._last_entry, manifest = found
        if self.live is not None and manifest.tag == self.live.tag:
            return None
        return manifest

    async def _apply(self, manifest: WeightManifest) -> None:
        """Fetch, verify, load. Raises LoadRefused, DamagedFile, FileNotFoundError, VLLMFailed,
        RedisError."""
        paths = await self._fetch(manifest)
        if paths is None:
            return
        whole, *deltas = map(str, paths)
        size = sum(file.bytes for file in manifest.files)
        update = WeightUpdate(
            whole, manifest.tag, manifest.tensors, manifest.kind, size, tuple(deltas)
        )
        await self._note_forks(manifest)
        live = self._policy.weights.live if self.live is not None else None
        try:
            update = await asyncio.to_thread(self._staging.stage, update, live)
            async with self._loads:
                if self._pinned is not None and self._pinned.tag != manifest.tag:
                    # Pinned while this one was fetched.
                    return
                paused = await self._load_rightly(update, manifest)
        finally:
            self._staging.clear()
        self.timings = Timings(max(0.0, time.time() - manifest.created), paused)
        await self._files.forget_all_but(manifest)
        log.info(
            "weights live",
            version=manifest.tag,
            seconds=round(self.timings.update_seconds or 0.0, 3),
            paused=round(paused, 3),
            canary_gap=self.canary.gap,
        )

    async def _fetch(self, manifest: WeightManifest) -> list[Path] | None:
        """The version's files, here and whole; None if newer versions came, and the learner deleted
        a file before it knew that this worker needs it."""
        try:
            return [await self._files.fetch(file) for file in manifest.files]
        except FileNotFoundError:
            newest = await self._store.weights.newest(self._run)
            if newest is None or newest.tag == manifest.tag or manifest is self._pinned:
                raise
            log.info("overtaken by newer versions", version=manifest.tag)
            return None

    async def _load_rightly(self, update: WeightUpdate, manifest: WeightManifest) -> float:
        """Load until vLLM serves the version. Returns seconds paused. Raises WrongWeights, and what
        `_load` raises."""
        try:
            await self._judge()
        except VLLMUnavailable as error:
            # After the load nobody can say what groups in flight were sampled by.
            await self._distrusted(f"the version served could not be scored: {error}")
        for _ in range(LOADS):
            # Nothing is changed in place of what nobody knows: what was wrong would stay.
            known = self._served is not None
            paused = await self._load(update if known else replace(update, patch=""))
            self._served, self._scored = manifest, False
            problem = await self._judge()
            if not problem:
                self._ever_right = True
                return paused
        raise WrongWeights(problem, self._ever_right)

    async def _judge(self) -> str:
        """Why vLLM does not serve the version that it has loaded, if it does not: what was sampled
        is then released. Asks only where that is not known. Raises VLLMUnavailable."""
        weights = self._policy.weights
        while self._served is not None and not weights.proven.is_set():
            weights.doubted.clear()
            first, self._scored = not self._scored, True
            try:
                problem = await self.canary.problem(self._served, first)
            except VLLMUnavailable:
                weights.doubted.set()
                raise
            if problem:
                return await self._distrusted(problem)
            if not weights.doubted.is_set():
                weights.proven.set()
                self.live = self._loaded = self._served
        return ""

    async def _distrusted(self, problem: str) -> str:
        """Release what was sampled, and serve nothing until the next load. Returns the problem."""
        self._served = self.live = None
        # The newest version once more.
        self._last_entry, self.error = "0", problem
        self._changed()
        log.error("what vLLM serves is not trusted", problem=problem)
        await self._distrust(problem)
        return problem

    async def _load(self, update: WeightUpdate) -> float:
        for _ in range(UNCLEAR_LIMIT):
            try:
                return await self._policy.weights.load(update, self._mode)
            except MustRestart as error:
                raise VLLMFailed(str(error)) from error
            except (WeightsUnclear, VLLMUnavailable) as error:
                # The server is paused or hangs: nothing is sampled, so try again at once.
                self.live = None
                self.error = str(error)
                log.warning("weights unclear", error=str(error))
        raise VLLMFailed(
            f"vLLM could not be brought to {update.tag} in {UNCLEAR_LIMIT} tries: {self.error}"
        )

    async def _note_forks(self, manifest: WeightManifest) -> None:
        """Note at which version each earlier lineage ended, from the store: this worker may miss
        the first version of a lineage, or a whole lineage. Raises RedisError."""
        if manifest.lineage == self._lineage:
            return
        lineages = await self._store.runs.lineages(self._run)
        began = [version for _, version in lineages]
        self.forks = {
            name: min(began[place:]) for place, (name, _) in enumerate(lineages[:-1], start=1)
        }
        self._lineage = manifest.lineage
