"""The folder from which vLLM reads a run's LoRA adapter. It always holds the live version.

vLLM drops its adapters at every weight update, and reads them again from the path in a request. So
all requests, also those in flight at an update, name this folder. Its weights are a link to the
live version's file. The engine replaces the link while the server is paused, so requests continue
under the new version.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.weights import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves memory for."""


@dataclass(frozen=True)
class AdapterSlot:
    folder: Path

    @property
    def weights(self) -> Path:
        """The link to the live adapter."""
        return self.folder / ADAPTER_WEIGHTS

    @property
    def max_rank(self) -> int:
        return next(rank for rank in RANKS if rank >= self._config["r"])

    @property
    def targets(self) -> list[str]:
        """The layers that get an adapter, by the last part of their names."""
        return sorted({target.rpartition(".")[2] for target in self._config["target_modules"]})

    @property
    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.folder / ADAPTER_CONFIG).read_text())
        return config

    def put(self, file: Path) -> None:
        """Make `file` the adapter, atomically. Other processes may do the same."""
        link = self.weights.with_suffix(f".{os.getpid()}")
        link.unlink(missing_ok=True)
        link.symlink_to(file.absolute())
        link.replace(self.weights)


def slot_for(model: Path, folder: Path) -> AdapterSlot | None:
    """Create a slot in `folder` with an adapter of zeros, which vLLM loads when it starts. Return
    None if `model` has no adapter."""
    blank = model / ADAPTER
    if not blank.is_dir():
        return None
    slot = AdapterSlot(folder / ADAPTER)
    slot.folder.mkdir()
    shutil.copy(blank / ADAPTER_CONFIG, slot.folder)
    slot.put(blank / ADAPTER_WEIGHTS)
    return slot
