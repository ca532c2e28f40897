"""Keeps one vLLM server on the newest published version of one run.

It fetches and checks a version's files (docs/weights.md) before it pauses the server, so a slow
disk or network costs no generation. If a version is refused, the old weights stay. The worker stays
unhealthy, and leases nothing, until a retry loads the version and the canary confirms that vLLM
serves it (`served_weights`). An evaluation pins its version: vLLM serves only that version until it
is unpinned.

The learner deletes files of old versions, except those in heartbeats. So a heartbeat names a file
before the worker fetches it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from redis.exceptions import RedisError

from rollout.aio import finish
from rollout.vllm.client.weight_loader import LoadRefused, WeightUpdate
from rollout.vllm.weights.fetched_files import FetchedFiles
from rollout.vllm.weights.served_weights import ServedWeights
from rollout.vllm.weights.staging import Staging
from services.contracts.schema import SchemaMismatch
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store
from services.volume import DamagedFile, KeyRefused

log = get_logger(__name__)

LONGEST_BACKOFF = 10.0
PIN_POLL_SECONDS = 0.1

CANNOT_LOAD = (LoadRefused, DamagedFile, FileNotFoundError, SchemaMismatch, KeyRefused)
"""The version is wrong, or this host may not have it. The worker is unhealthy until it loads the
newest version."""


class CannotPin(RuntimeError):
    """This worker cannot load the pinned version."""


class WeightFollower:
    def __init__(
        self,
        run: str,
        store: Store,
        files: FetchedFiles,
        served: ServedWeights,
        staging: Staging,
        heartbeat: Callable[[], Awaitable[None]],
    ) -> None:
        """`heartbeat` sends a heartbeat with `files`."""
        self._run, self._store, self._files = run, store, files
        self._served, self._loader, self._staging = served, served.loader, staging
        self.canary, self.until_proven = served.canary, served.until_proven
        self._heartbeat = heartbeat
        self._pinned: WeightManifest | None = None
        self._pin_error: Exception | None = None
        self._last_entry = "0"
        self._lineage = ""
        self._loading: WeightManifest | None = None
        self.forks: dict[str, int] = {}
        """For each earlier lineage, the version at which it ended."""
        self.update_seconds: float | None = None
        """From the end of the optimizer step until the newest version was live."""
        self.pause_seconds: float | None = None
        """How long that update paused generation."""
        self._error = ""

    @property
    def live(self) -> WeightManifest | None:
        return self._served.live

    @property
    def error(self) -> str:
        """Why the worker is unhealthy; '' if it is not."""
        return self._error or self._served.problem

    @property
    def healthy(self) -> bool:
        """Whether vLLM was found to serve the live version, and the last try to load did not
        fail."""
        return self._served.proven and not self.error

    @property
    def updating(self) -> bool:
        return self._loader.updating

    @property
    def sleeping(self) -> bool:
        """Whether the server sleeps, because the learner has its GPU."""
        return self._loader.sleeping

    @property
    def files(self) -> list[str]:
        """Files that the learner must keep: those of the version that is being loaded, and those of
        the live one."""
        needed = [m for m in (self._loading, self.live) if m is not None]
        # Both versions may begin with the same files.
        return list(dict.fromkeys(file.name for manifest in needed for file in manifest.files))

    async def pin(self, manifest: WeightManifest, back: bool) -> bool:
        """Serve only this version until `unpin`. Waits for a load in progress. Without `back`,
        returns False and changes nothing if vLLM serves a newer version."""
        async with self._served.lock:
            live = self.live
            if live and live.tag != manifest.tag and live.created > manifest.created and not back:
                return False
            self._pinned, self._pin_error = manifest, None
            return True

    async def until_pinned(self) -> None:
        """Return when vLLM was found to serve the pinned version. Raises CannotPin if this worker
        cannot load it, FileNotFoundError if its files are gone, DamagedFile if a file is damaged
        here, and SchemaMismatch."""
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
        pinned, live = self._pinned, self.live
        return bool(pinned and live and self.healthy and live.tag == pinned.tag)

    async def follow(self) -> None:
        """Load versions as they appear, and prove the served version whenever it is in doubt.
        Returns never. Raises VLLMFailed if the server must be restarted."""
        loops = [
            asyncio.create_task(self._follow_versions(), name="follow versions"),
            asyncio.create_task(self._served.prove_again(), name="prove again"),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                loop.result()
        finally:
            await end(loops)

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
                # After any other error Redis or the gateway is unreachable, and the live version
                # stays right.
                if isinstance(error, CANNOT_LOAD):
                    self._files.read_again()
                    if manifest is not None and manifest is self._pinned:
                        self._pin_error = error
                    else:
                        self._error = str(error)
                self._last_entry = "0"
                log.warning("cannot follow weights", error=str(error))
                self._served.changed()
                await asyncio.sleep(random.uniform(0.1, min(LONGEST_BACKOFF, 0.5 * 2**failures)))
            else:
                self._error = ""
                self._served.changed()

    async def _next(self) -> WeightManifest | None:
        """Return the pinned manifest, or the newest one, unless it is live. Waits some seconds for
        a newer one."""
        if self._pinned is not None:
            if not self._serves_pinned:
                return self._pinned
            await asyncio.sleep(PIN_POLL_SECONDS)
            return None
        # If no version is live any more, load the newest one again.
        last_entry = self._last_entry if self.live is not None else "0"
        entry = await self._store.weights.newest_after(self._run, last_entry, wait=2.0)
        if entry is None:
            return None
        self._last_entry, manifest = entry
        if self.live is not None and manifest.tag == self.live.tag:
            return None
        return manifest

    async def _apply(self, manifest: WeightManifest) -> None:
        """Fetch, check and load. Raises LoadRefused, DamagedFile, FileNotFoundError, VLLMFailed,
        RedisError."""
        paths = await self._fetch(manifest)
        if paths is None:
            return
        whole, *deltas = map(str, paths)
        size, kind = sum(file.bytes for file in manifest.files), manifest.kind
        update = WeightUpdate(whole, manifest.tag, manifest.tensors, kind, size, tuple(deltas))
        await self._note_forks(manifest)
        live = self._loader.live if self.live is not None else None
        try:
            stage = asyncio.to_thread(self._staging.stage, update, live)
            # The thread writes its file even if this is cancelled, so wait before the file is
            # cleared.
            update = await finish(asyncio.create_task(stage))
            async with self._served.lock:
                if self._pinned is not None and self._pinned.tag != manifest.tag:
                    # Another version was pinned while this one was fetched.
                    return
                paused = await self._served.load(update, manifest)
        finally:
            self._staging.clear()
        self.update_seconds, self.pause_seconds = max(0.0, time.time() - manifest.created), paused
        await self._files.forget_all_but(manifest)
        log.info(
            "weights live",
            version=manifest.tag,
            seconds=round(self.update_seconds, 3),
            paused=round(paused, 3),
            canary_gap=self.canary.gap,
            canary_seconds=self.canary.seconds,
        )

    async def _fetch(self, manifest: WeightManifest) -> list[Path] | None:
        """Return the version's files, fetched and whole. Return None if newer versions came and the
        learner deleted a file before it knew that this worker needs it."""
        try:
            return [await self._files.fetch(file) for file in manifest.files]
        except FileNotFoundError:
            newest = await self._store.weights.newest(self._run)
            if newest is None or newest.tag == manifest.tag or manifest is self._pinned:
                raise
            log.info("overtaken by newer versions", version=manifest.tag)
            return None

    async def _note_forks(self, manifest: WeightManifest) -> None:
        """Read from the store at which version each earlier lineage ended: this worker may have
        missed the first version of a lineage, or a whole lineage. Raises RedisError."""
        if manifest.lineage == self._lineage:
            return
        lineages = await self._store.runs.lineages(self._run)
        began = [version for _, version in lineages]
        self.forks = {
            name: min(began[place:]) for place, (name, _) in enumerate(lineages[:-1], start=1)
        }
        self._lineage = manifest.lineage
