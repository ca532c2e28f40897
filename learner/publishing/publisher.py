"""Publish versions: the training loop copies the weights or their changes, then a thread makes the
version durable and registers it. The next step never waits for the disk.

The order makes a version trustworthy: file and folder are fsynced and renamed, and only then the
manifest is registered. A version exists when its manifest does. Each version adds one file, whole
or a delta, so a dying learner cannot leave half a version.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors.torch import save_file

from learner.model.loading.tensor_names import Change
from learner.persist.background import Background
from learner.persist.disk_retry import Disk
from learner.publishing.delta_files import DeltaFiles
from learner.publishing.mirror import Mirror
from learner.publishing.versions import Version
from learner.store.run_store import RunStore
from services.contracts.canary import CANARY
from services.contracts.records import WorkerRecord
from services.contracts.weights import DELTA, WeightFile, WeightManifest, version_tag
from services.volume import DamagedFile, check_file, weight_file, written_beside
from services.weights import in_threads, tensor_checksum

KEPT_VERSIONS = 3
"""Newest versions whose files always stay on disk. A worker that has just read the newest version's
manifest has time to register that it needs the files. A worker that is too late starts again with
the newest version."""
LINEAGE = re.compile(r"\.?v\d+-([^-.]+)\.")
"""The lineage in the name of a version's file, complete or unfinished."""


@dataclass(frozen=True)
class Again:
    """Publish the newest version again, as a whole file."""

    created: float


@dataclass(frozen=True)
class Pushed:
    bytes: int
    """Bytes of its file, which a worker with the previous version fetches."""
    full_bytes: int
    """Bytes of the newest whole file."""
    changed: float | None
    """Share of the weights that differ from the previous version. None if they were not
    compared."""

    def metrics(self) -> dict[str, float]:
        sizes = {"push/bytes": float(self.bytes), "push/full_bytes": float(self.full_bytes)}
        return sizes if self.changed is None else {**sizes, "push/changed": self.changed}


class Publisher(Background[Version | Again]):
    """Writes versions in order, one at a time, on its own thread.

    Submitting blocks only while two earlier versions are still being written: versions must not
    pile up in memory faster than the disk takes them.
    """

    def __init__(
        self,
        store: RunStore,
        lineages: Sequence[str],
        disk: Disk,
        mirrors: bool = False,
        evaluated: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`lineages`: the run's lineages up to this learner's, the last. Files of all others are a
        successor's and are not touched, because a learner that was replaced while it slept may wake
        at any point here. `mirrors`: keep a copy of the newest weights, as changes to them require.
        `evaluated` returns, on the thread, the files of versions that evaluations still need."""
        super().__init__("publisher", self._publish)
        self._store, self._run, self._disk, self._root = store, store.run, disk, disk.root
        self._lineage, self._deletes = lineages[-1], {*lineages}
        self._mirrors, self._evaluated = mirrors, evaluated
        self._mirror: Mirror | None = None
        self._files = DeltaFiles()
        self._newest: WeightManifest | None = None
        self._checksums: dict[str, str] | None = None
        """Checksums of the newest version's tensors, if it came as a host copy."""
        self._kept: tuple[WeightManifest, ...] = ()
        """Manifests of the newest versions. Replaced, never changed, because another thread reads
        it."""
        self.pushed: Pushed | None = None
        """Sizes of the newest registered version."""
        # Unfinished files of dead learners.
        for unfinished in self._files_of_lineage(".v*"):
            if unfinished.suffix != ".lock":
                unfinished.unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        return (self._root / weights_name(self._run, 0, self._lineage)).parent

    def _files_of_lineage(self, pattern: str) -> Iterator[Path]:
        """Yield the matching files of the lineages that this learner may delete: not a
        successor's."""
        matches = ((path, LINEAGE.match(path.name)) for path in self._folder.glob(pattern))
        return (path for path, name in matches if name is not None and name[1] in self._deletes)

    def damage(self) -> str:
        """Describe a problem with a file of the newest version, or return ''. Reads all its
        files."""
        if self.busy or self._newest is None:
            return ""
        for file in self._newest.files:
            try:
                check_file(self._root / file.name, file.bytes, file.xxh3)
            except DamagedFile as error:
                return str(error)
            except FileNotFoundError:
                return f"{Path(file.name).name} is gone"
        return ""

    def distrusted(self, workers: Sequence[WorkerRecord]) -> bool:
        """Whether a worker reports that it cannot load a file of the newest version. The next
        version is then whole."""
        names = [Path(file.name).name for file in self._files.files]
        errors = [worker.error for worker in workers if worker.error]
        return any(name in error for error in errors for name in names)

    @property
    def can_repeat(self) -> bool:
        """Whether `Again` may be submitted: the newest weights are in memory."""
        return self._mirror is not None

    def manifest(self, tag: str) -> WeightManifest | None:
        """Return the manifest of a version, if it is registered and among the newest."""
        return next((manifest for manifest in self._kept if manifest.tag == tag), None)

    # --- on the thread --------------------------------------------------------------------------

    def _publish(self, item: Version | Again) -> None:
        changed: float | None = None
        workers = self._store.workers()
        if isinstance(item, Again):
            newest, mirror = self._newest, self._mirror
            assert newest is not None
            assert mirror is not None
            again = Version(newest.version, item.created, newest.canary, tensors=mirror.tensors)
            manifest = self._whole(again)
        elif item.changes is not None:
            manifest, changed = self._changed(item, item.changes, workers)
        else:
            # Free the old weights first: memory may not hold both.
            self._mirror = None
            tensors = dict(item.tensors)
            computed = in_threads(_checksum, tensors.values())
            checksums = dict(zip(tensors, computed, strict=True))
            item = self._proved_alike(item, checksums == self._checksums)
            self._checksums = checksums
            manifest = self._whole(item)
            if self._mirrors:
                self._mirror = Mirror(tensors)
        self._store.publish(manifest)
        self._newest = manifest
        self._kept = (*self._kept, manifest)[-KEPT_VERSIONS:]
        self.pushed = Pushed(manifest.files[-1].bytes, self._files.files[0].bytes, changed)
        self._delete_old()

    def _changed(
        self, version: Version, changes: Iterator[Change], workers: Sequence[WorkerRecord]
    ) -> tuple[WeightManifest, float]:
        """Return the manifest of a version given by its changes, and the share of changed
        weights."""
        mirror, newest, number = self._mirror, self._newest, version.number
        assert mirror is not None
        assert newest is not None
        delta = mirror.change(changes, newest.tag, version_tag(self._lineage, number))
        self._checksums = None
        version = self._proved_alike(version, delta.changed == 0)
        share = delta.changed / max(1, mirror.weights)
        if self.distrusted(workers) or not self._files.takes(number, delta.bytes):
            return self._whole(replace(version, tensors=mirror.tensors)), share
        name, more = delta_name(self._run, number, self._lineage), _metadata(version)
        file = self._written(name, delta.bytes, lambda path: delta.write(path, more))
        self._files.add(number, file)
        return self._manifest(version, "delta", len(mirror.tensors)), share

    def _proved_alike(self, version: Version, unchanged: bool) -> Version:
        """Return `version` with the canary of the previous version, if both have the same weights.
        Two passes over equal weights may differ by rounding (number of threads, kernel), and
        workers would take the difference for weights that did not arrive."""
        if not unchanged or self._newest is None:
            return version
        return replace(version, canary=self._newest.canary)

    def _whole(self, version: Version) -> WeightManifest:
        name, tensors = (
            weights_name(self._run, version.number, self._lineage),
            dict(version.tensors),
        )
        size = sum(tensor.nbytes for tensor in tensors.values())
        metadata = {"format": "pt", **_metadata(version)}
        file = self._written(name, size, lambda path: save_file(tensors, path, metadata=metadata))
        self._files.begin(version.number, file)
        return self._manifest(version, version.kind, len(tensors))

    def _written(self, name: str, size: int, write: Callable[[Path], None]) -> WeightFile:
        """Write the file `name`, of about `size` bytes, with `write`, and wait while the disk has
        trouble. Return its entry in a manifest."""

        def written() -> WeightFile:
            with written_beside(self._root / name) as beside:
                write(beside)
                return weight_file(beside, name)

        return self._disk.retry(name, written, size)

    def _manifest(
        self, version: Version, kind: Literal["full", "delta", "adapter"], tensors: int
    ) -> WeightManifest:
        return WeightManifest(
            run=self._run,
            version=version.number,
            lineage=self._lineage,
            kind=kind,
            files=self._files.files,
            tensors=tensors,
            model=f"runs/{self._run}/model",
            created=version.created,
            canary=version.canary,
        )

    def _delete_old(self) -> None:
        """Delete files of old versions unless a worker uses or an evaluation needs them."""
        names = [file.name for manifest in self._kept for file in manifest.files]
        names += [name for worker in self._store.workers() for name in worker.files]
        kept = {Path(name).name for name in (*names, *self._evaluated())}
        for path in self._files_of_lineage("v*.safetensors"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _checksum(tensor: torch.Tensor) -> str:
    return tensor_checksum(tensor.reshape(-1).view(torch.uint8).numpy())


def _metadata(version: Version) -> dict[str, str]:
    """Metadata for programs that read the file without its manifest."""
    return {CANARY: msgspec.json.encode(version.canary).decode()} if version.canary else {}


def weights_name(run: str, version: int, lineage: str) -> str:
    """`runs/RUN/weights/v000007-9f3a1c.safetensors`, relative to the data volume."""
    return f"runs/{run}/weights/v{version:06d}-{lineage}.safetensors"


def delta_name(run: str, version: int, lineage: str) -> str:
    """`runs/RUN/weights/v000008-9f3a1c.delta.safetensors`, relative to the data volume."""
    return weights_name(run, version, lineage).removesuffix(".safetensors") + DELTA
