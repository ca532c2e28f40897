"""The folder from which vLLM reads a run's LoRA adapter: always that of the version that is live.

vLLM drops its adapters at every weight update and reads them again, from the path that a request
names, as soon as a request needs them. So all requests, also those in flight at an update, name
this one folder, whose weights are a link to the file of the live version. The link is replaced
while the server is paused (`weight_transfer_engine`): what goes on then goes on under the new one.
"""

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.weights import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS
from services.process import started_at

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM makes room for."""
PREFIX = "headrace-adapter-"
"""Of a slot's folder; the process that made it follows, by its id and when it started."""


@dataclass(frozen=True)
class AdapterSlot:
    """A slot in a folder of its own, made for one server."""

    folder: Path

    @property
    def weights(self) -> Path:
        """The link to the adapter that is live."""
        return self.folder / ADAPTER_WEIGHTS

    @property
    def room(self) -> int:
        """The rank that the server has to make room for."""
        return next(room for room in RANKS if room >= self._config["r"])

    @property
    def targets(self) -> list[str]:
        """The layers that the server has to make room beside, by the last part of their names."""
        return sorted({target.rpartition(".")[2] for target in self._config["target_modules"]})

    @property
    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / ADAPTER_CONFIG).read_text())
        return config

    def put(self, file: Path) -> None:
        """Make `file` the adapter, at once; other processes may be doing the same."""
        beside = self.weights.with_suffix(f".{os.getpid()}")
        beside.unlink(missing_ok=True)
        beside.symlink_to(file.absolute())
        beside.replace(self.weights)

    def remove(self) -> None:
        """Delete the folder; the files of versions stay."""
        shutil.rmtree(self.folder, ignore_errors=True)


def slot_for(model: Path) -> AdapterSlot | None:
    """A fresh slot with the adapter that does nothing, which vLLM tries when it starts; None where
    the model in the folder `model` is served whole."""
    blank = model / ADAPTER
    if not blank.is_dir():
        return None
    _remove_left()
    owner = os.getpid()
    prefix = f"{PREFIX}{owner}-{started_at(owner)}-"
    slot = AdapterSlot(Path(tempfile.mkdtemp(prefix=prefix)))
    shutil.copy(blank / ADAPTER_CONFIG, slot.folder)
    slot.put(blank / ADAPTER_WEIGHTS)
    return slot


def _remove_left() -> None:
    """Delete the slots of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = re.fullmatch(r"(\d+)-(\d+)-\w+", folder.name.removeprefix(PREFIX))
        if owner and started_at(int(owner[1])) != int(owner[2]):
            shutil.rmtree(folder, ignore_errors=True)
