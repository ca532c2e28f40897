"""Files of weight versions on this worker's host: fetches them, and deletes copies that no worker
needs any more."""

import time
from contextlib import suppress
from pathlib import Path

from services.contracts.weights import WeightFile, WeightManifest
from services.store import Store
from services.volume import Volume

ABANDONED_SECONDS = 3600.0
"""A copy of this age that no heartbeat names is abandoned."""


class FetchedFiles:
    def __init__(self, worker: str, store: Store, volume: Volume) -> None:
        self._worker, self._store, self._volume = worker, store, volume
        self._whole: dict[Path, tuple[WeightFile, tuple[int, ...] | None]] = {}
        """Files that were found whole, with their identity on disk at that time."""
        self._copies: set[Path] = set()
        """Files that this worker fetched, on a host without the data volume."""

    def read_again(self) -> None:
        """Read every file again before its next use: vLLM has refused one."""
        self._whole.clear()

    async def fetch(self, file: WeightFile) -> Path:
        """Return the file, fetched and whole. A file that was found whole is read again only if it
        has changed on disk, or after `read_again`. Raises what `Volume.fetch` raises."""
        path = self._volume.path(file.name)
        identity = _identity(path)
        if identity is None:
            self._copies.add(path)
        elif self._whole.get(path) == (file, identity):
            return path
        path = await self._volume.fetch(file)
        self._whole[path] = file, _identity(path)
        return path

    async def forget_all_but(self, loaded: WeightManifest) -> None:
        """On a host without the volume: delete copies of older versions that no other worker needs,
        and old copies, whole or partial, of killed workers and ended runs."""
        paths = {self._volume.path(file.name) for file in loaded.files}
        self._whole = {path: known for path, known in self._whole.items() if path in paths}
        if not self._copies or self._volume.has_run(loaded.run):
            # A file of the volume may have been missing for a while; it is not a copy.
            return
        workers = [
            worker for worker in await self._store.workers.list() if worker.id != self._worker
        ]
        needed = {Path(name).name for worker in workers for name in worker.files}
        needed |= {path.name for path in paths}
        for path in [path for path in self._copies if path.name not in needed]:
            path.unlink(missing_ok=True)
            self._copies.discard(path)
        oldest = time.time() - ABANDONED_SECONDS
        for path in self._volume.root.glob("runs/*/weights/*v*.safetensors*"):
            # Another worker of this host may delete it, too.
            with suppress(FileNotFoundError):
                copy = path.suffix != ".lock" and path.name not in needed
                if copy and path.stat().st_mtime < oldest:
                    path.unlink()


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when the file is replaced or written to; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
