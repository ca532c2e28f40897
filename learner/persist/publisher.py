"""Publishing a version: a copy of the weights on the host, then a thread that makes it durable
and registers it. The next step never waits for the disk.

Order is what makes a version trustworthy: file and folder are fsynced and renamed first, then
the manifest is registered. A version exists when its manifest does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors.torch import save_file

from learner.model.loading import LoadedModel
from learner.model.lora import trained_on_host
from learner.persist.background import Background
from learner.persist.disk_retry import Disk
from learner.slices import WHOLE, Part
from services.contracts.canary import CANARY, Canary
from services.contracts.weights import WeightFile, WeightManifest
from services.volume import DamagedFile, check_file, weight_file, written_beside

KEPT_VERSIONS = 3
"""Newest versions that stay on disk in any case: a worker that has just read which version is the
newest has time to register that it needs it. One that is too late starts again with the newest."""


@dataclass(frozen=True)
class HostWeights:
    """A version's weights, copied, and what its manifest will say."""

    version: int
    tensors: dict[str, torch.Tensor]
    created: float
    """Unix seconds when the optimizer step ended."""
    kind: Literal["full", "adapter"] = "full"
    canary: Canary | None = None


def host_weights(
    loaded: LoadedModel,
    version: int,
    created: float,
    part: Part | None = WHOLE,
    canary: Canary | None = None,
) -> HostWeights:
    """Copy what training changes to the host in the type that is published. Of a sharded model
    every rank gives its slices; one with `part` None copies nothing."""
    tensors = trained_on_host(loaded, loaded.publish_dtype, part)
    return HostWeights(version, tensors, created, "adapter" if loaded.lora else "full", canary)


class Publisher(Background[HostWeights]):
    """Writes versions in order, one at a time, on its own thread.

    Handing one over blocks only while two earlier ones are still being written: versions must not
    pile up in memory faster than the disk takes them.
    """

    def __init__(
        self,
        root: Path,
        run: str,
        lineage: str,
        disk: Disk,
        register: Callable[[WeightManifest], None],
        needed: Callable[[], set[str]],
    ) -> None:
        """`register` makes a manifest known; `needed` names the files that live workers load or
        would go back to. Both are called from the thread."""
        super().__init__("publisher", self._publish)
        self._root, self._run, self._lineage = root, run, lineage
        self._disk, self._register, self._needed = disk, register, needed
        self._newest: WeightFile | None = None
        # What learners that died have left half written; nobody else writes here.
        for unfinished in (root / weights_name(run, 0, lineage)).parent.glob(".v*"):
            if unfinished.suffix != ".lock":
                unfinished.unlink(missing_ok=True)

    def _publish(self, weights: HostWeights) -> None:
        name = weights_name(self._run, weights.version, self._lineage)
        size = sum(tensor.nbytes for tensor in weights.tensors.values())
        manifest = self._disk.retry(name, lambda: self._write(weights, name), size)
        self._register(manifest)
        (self._newest,) = manifest.files
        self._delete_old(Path(self._newest.name).name)

    def damage(self) -> str:
        """How the newest version's file is damaged, or ''. Reads all of it."""
        if self.busy or self._newest is None:
            return ""
        file = self._newest
        try:
            check_file(self._root / file.name, file.bytes, file.xxh3)
        except (DamagedFile, FileNotFoundError) as error:
            return str(error)
        return ""

    def _write(self, weights: HostWeights, name: str) -> WeightManifest:
        path = self._root / name
        with written_beside(path) as beside:
            save_file(weights.tensors, beside, metadata=_metadata(weights))
            file = weight_file(beside, name)
        return WeightManifest(
            run=self._run,
            version=weights.version,
            lineage=self._lineage,
            kind=weights.kind,
            files=[file],
            tensors=len(weights.tensors),
            model=f"runs/{self._run}/model",
            created=weights.created,
            canary=weights.canary,
        )

    def _delete_old(self, newest: str) -> None:
        # By age, not by name: a new lineage begins below the versions of the one before. But the
        # newest by name: the clock may have gone back.
        folder = (self._root / weights_name(self._run, 0, self._lineage)).parent
        files = [path for path in folder.glob("v*.safetensors") if path.name != newest]
        files.sort(key=lambda path: path.stat().st_mtime_ns)
        old = files[: 1 - KEPT_VERSIONS]
        needed = {Path(name).name for name in self._needed()} if old else set()
        for path in old:
            if path.name not in needed:
                path.unlink(missing_ok=True)


def _metadata(weights: HostWeights) -> dict[str, str]:
    """For programs that read the file without its manifest."""
    found = {"format": "pt"}
    if weights.canary is not None:
        found[CANARY] = msgspec.json.encode(weights.canary).decode()
    return found


def weights_name(run: str, version: int, lineage: str) -> str:
    """`runs/RUN/weights/v000007-9f3a1c.safetensors`, relative to the data volume."""
    return f"runs/{run}/weights/v{version:06d}-{lineage}.safetensors"
