"""Keeps one vLLM server on the newest published version of one run.

Fetch first, verify, and only then pause: a slow disk or network costs no generation. A version
that cannot be loaded leaves the old weights serving, and the worker unhealthy (it leases
nothing) until a newer try is right. Whoever needs several answers from one version (an
evaluation) takes `hold`, and no update comes between.

The learner deletes old versions' files, but none that a heartbeat names: what is needed is told
before it is fetched.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import RedisError

from rollout.policy import (
    LoadRefused,
    PolicyClient,
    Snapshot,
    UpdateMode,
    VLLMHangs,
    VLLMUnavailable,
    WeightsUnclear,
)
from rollout.vllm_server import VLLMFailed
from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightManifest
from services.logs import get_logger
from services.store import Store
from services.volume import DamagedFile, KeyRefused, Volume

log = get_logger(__name__)

# Loads of unclear outcome in a row after which the server is not worth asking again.
UNCLEAR_LIMIT = 3
LONGEST_BACKOFF = 10.0
# A copy that no worker has named for so long is nobody's.
LEFT_SECONDS = 3600.0

NOT_TO_BE_LOADED = (LoadRefused, DamagedFile, FileNotFoundError, SchemaMismatch, KeyRefused)
"""What is wrong with a version, or with what this host may have: the worker is unhealthy until it
can load a newest one."""


@dataclass
class Timings:
    """Of the newest update: seconds from the end of the optimizer step until it was live here,
    and seconds that generation paused."""

    update_seconds: float | None = None
    pause_seconds: float | None = None


class Follower:
    """Follows the manifests of `run` for the server behind `policy`."""

    def __init__(
        self,
        run: str,
        store: Store,
        volume: Volume,
        policy: PolicyClient,
        mode: UpdateMode,
        changed: Callable[[], None],
        tell: Callable[[], Awaitable[None]],
    ) -> None:
        """`mode`: what becomes of requests in flight (see `PolicyClient.load`). `changed` is
        called when `live` or `healthy` may have changed; `tell` sends a heartbeat with `files`."""
        self._run = run
        self._store = store
        self._volume = volume
        self._policy = policy
        self._mode: UpdateMode = mode
        self._changed = changed
        self._tell = tell
        self._hold = asyncio.Lock()
        self._last_entry = "0"
        self._lineage = ""
        self._loading: WeightManifest | None = None
        self._loaded: WeightManifest | None = None
        self._fetched: set[Path] = set()
        """Files that were not here before: copies, on a host without the data volume."""
        self.live: WeightManifest | None = None
        self.forks: dict[str, int] = {}
        self.timings = Timings()
        self.error = ""

    @property
    def healthy(self) -> bool:
        """Whether a whole version is live and the newest try did not fail."""
        return self.live is not None and not self.error

    @property
    def updating(self) -> bool:
        """Whether the server is paused for an update."""
        return self._policy.updating

    @property
    def files(self) -> list[str]:
        """Names of the files that must not go: of the version that is being fetched or loaded,
        and of the one that was loaded last, which the server puts back where a load breaks."""
        needed = [m for m in (self._loading, self._loaded) if m is not None]
        return [file.name for manifest in needed for file in manifest.files]

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[WeightManifest | None]:
        """The live version, which stays live for the length of the block."""
        async with self._hold:
            yield self.live if self.healthy else None

    async def follow(self) -> None:
        """Apply versions as they appear, for ever.

        Raises VLLMFailed when the server must be restarted to be right again.
        """
        failures = 0
        while True:
            try:
                manifest = await self._next()
                if manifest is None:
                    continue
                self._loading = manifest
                try:
                    await self._tell()
                    await self._apply(manifest)
                finally:
                    self._loading = None
                failures = 0
            except (*NOT_TO_BE_LOADED, RedisError, OSError) as error:
                failures += 1
                # An OSError is Redis or the gateway away: what is live stays right meanwhile.
                if isinstance(error, NOT_TO_BE_LOADED):
                    self.error = str(error)
                self._last_entry = "0"
                log.warning("cannot follow weights", error=str(error))
                self._changed()
                await asyncio.sleep(random.uniform(0.1, min(LONGEST_BACKOFF, 0.5 * 2**failures)))
            else:
                self.error = ""
                self._changed()

    async def _next(self) -> WeightManifest | None:
        """The newest manifest, waiting a while for one that is not live; None if none came."""
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
        if len(manifest.files) != 1:
            raise LoadRefused(
                f"version {manifest.tag} has {len(manifest.files)} files; this worker reads one"
            )
        path = await self._fetch(manifest)
        if path is None:
            return
        snapshot = Snapshot(
            str(path), manifest.tag, manifest.tensors, manifest.kind, manifest.files[0].bytes
        )
        await self._note_forks(manifest)
        async with self._hold:
            paused = await self._load(snapshot)
        self.live = self._loaded = manifest
        self.timings = Timings(max(0.0, time.time() - manifest.created), paused)
        await self._forget_copies(path)
        log.info(
            "weights live",
            version=manifest.tag,
            seconds=round(self.timings.update_seconds or 0.0, 3),
            paused=round(paused, 3),
        )

    async def _fetch(self, manifest: WeightManifest) -> Path | None:
        """The version's file, here and whole; None where newer versions have come, and the file
        went before anyone knew that it was needed here."""
        file = manifest.files[0]
        path = self._volume.path(file.name)
        if not path.exists():
            self._fetched.add(path)
        try:
            return await self._volume.fetch(file.name, file.bytes, file.xxh3)
        except FileNotFoundError:
            newest = await self._store.weights.newest(self._run)
            if newest is None or newest.tag == manifest.tag:
                raise
            log.info("overtaken by newer versions", version=manifest.tag)
            return None

    async def _forget_copies(self, loaded: Path) -> None:
        """Delete copies of older versions: on such a host nobody else does. Also those, whole or
        not, that were left by workers that were killed, and by runs that are over."""
        for path in self._fetched - {loaded}:
            path.unlink(missing_ok=True)
        self._fetched &= {loaded}
        if loaded not in self._fetched:
            return
        names = [name for worker in await self._store.workers.list() for name in worker.files]
        needed = {Path(name).name for name in names} | {loaded.name}
        before = time.time() - LEFT_SECONDS
        for path in self._volume.root.glob("runs/*/weights/*v*.safetensors*"):
            # Another worker of this host may be about the same.
            with suppress(FileNotFoundError):
                if path.name not in needed and path.stat().st_mtime < before:
                    path.unlink()

    async def _load(self, snapshot: Snapshot) -> float:
        for _ in range(UNCLEAR_LIMIT):
            try:
                return await self._policy.load(snapshot, self._mode)
            except VLLMHangs as error:
                raise VLLMFailed(str(error)) from error
            except (WeightsUnclear, VLLMUnavailable) as error:
                # The server is paused or hung; nothing is sampled meanwhile, so try at once.
                self.live = None
                self.error = str(error)
                log.warning("weights unclear", error=str(error))
        raise VLLMFailed(
            f"vLLM could not be brought to {snapshot.tag} in {UNCLEAR_LIMIT} tries: {self.error}"
        )

    async def _note_forks(self, manifest: WeightManifest) -> None:
        """Remember where each earlier lineage was left for good, as the learner counts it. Not by
        the versions that are seen here: the first of a lineage may go unseen, and so may a whole
        lineage. Raises RedisError."""
        if manifest.lineage == self._lineage:
            return
        lineages = await self._store.runs.lineages(self._run)
        began = [version for _, version in lineages]
        self.forks = {
            name: min(began[place:]) for place, (name, _) in enumerate(lineages[:-1], start=1)
        }
        self._lineage = manifest.lineage
