"""Publishing a version: a copy of the weights on the host, then a thread that makes it durable
and registers it. The next step never waits for the disk.

Order is what makes a version trustworthy: file and folder are fsynced and renamed first, then
the manifest is registered. A version exists when its manifest does.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from learner.models import LoadedModel, weight_tensors
from services.contracts.weights import WeightFile, WeightManifest
from services.logs import get_logger
from services.volume import checksum, written_beside

log = get_logger(__name__)

KEPT_VERSIONS = 3
"""Newest snapshots left on disk. Workers only ever fetch the newest; one that is overtaken while
it fetches starts again with the newest."""


@dataclass(frozen=True)
class Snapshot:
    """A version's weights, copied, and what its manifest will say."""

    version: int
    tensors: dict[str, torch.Tensor]
    created: float
    """Unix seconds when the optimizer step ended."""


def snapshot(loaded: LoadedModel, version: int, created: float) -> Snapshot:
    """Copy the weights to the host in the type that is published."""
    return Snapshot(
        version,
        {
            name: tensor.to("cpu", loaded.publish_dtype, copy=True).contiguous()
            for name, tensor in weight_tensors(loaded.model).items()
        },
        created,
    )


class Publisher:
    """Writes snapshots in order, one at a time, on its own thread.

    `register` makes a manifest known (and is called from that thread). What goes wrong there is
    raised by the next call from the training loop.
    """

    def __init__(
        self, root: Path, run: str, lineage: str, register: Callable[[WeightManifest], None]
    ) -> None:
        self._root, self._run, self._lineage = root, run, lineage
        self._register = register
        self._waiting: queue.Queue[Snapshot | None] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot) -> None:
        """Hand a snapshot over. Blocks only while two earlier ones are still being written:
        versions must not pile up in memory faster than the disk takes them."""
        self._raise()
        self._waiting.put(snapshot)

    def wait(self) -> None:
        """Return when everything submitted is registered."""
        self._waiting.join()
        self._raise()

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (snapshot := self._waiting.get()) is not None:
            try:
                if self._error is None:
                    self._register(self._write(snapshot))
                    self._retire()
            except BaseException as error:
                # Kept for the training loop, which alone can end the run with a reason.
                log.error("publishing failed", run=self._run, version=snapshot.version)
                self._error = error
            finally:
                self._waiting.task_done()
        self._waiting.task_done()

    def _write(self, snapshot: Snapshot) -> WeightManifest:
        name = weights_name(self._run, snapshot.version, self._lineage)
        path = self._root / name
        with written_beside(path) as beside:
            save_file(snapshot.tensors, beside, metadata={"format": "pt"})
            file = WeightFile(name, beside.stat().st_size, checksum(beside))
        return WeightManifest(
            run=self._run,
            version=snapshot.version,
            lineage=self._lineage,
            kind="full",
            files=[file],
            tensors=len(snapshot.tensors),
            model=f"runs/{self._run}/model",
            created=snapshot.created,
        )

    def _retire(self) -> None:
        # By age, not by name: a new lineage begins below the versions of the one before.
        folder = (self._root / weights_name(self._run, 0, self._lineage)).parent
        files = sorted(folder.glob("v*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-KEPT_VERSIONS]:
            path.unlink(missing_ok=True)


def weights_name(run: str, version: int, lineage: str) -> str:
    """`runs/RUN/weights/v000007-9f3a1c.safetensors`, relative to the data volume."""
    return f"runs/{run}/weights/v{version:06d}-{lineage}.safetensors"
