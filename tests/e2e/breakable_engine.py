"""vLLM's weight-transfer engine with a loading that fails on demand, and files for it.

Imports vLLM, which takes seconds: tests import this file when they run, since every process of
pytest-xdist collects all tests.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from rollout.vllm_plugin.weight_engine import SafetensorsEngine, UpdateInfo, WeightTransferError

__all__ = ["Breakable", "WeightTransferError", "full"]


class Breakable(SafetensorsEngine):
    """Knows which file's weights the model has; loading a file in `broken` leaves it mixed."""

    def __init__(self) -> None:
        self._tensors = None
        self._live = ""
        self._slot = None
        self.model_has = "random weights"
        self.broken: set[str] = set()

    def _load(self, path: Path, deltas: list[Path]) -> None:
        self.model_has = "a mixture"
        if path.name in self.broken:
            raise RuntimeError(f"cannot load {path.name}")
        self.model_has = path.name


def full(folder: Path, name: str) -> UpdateInfo:
    save_file({"weight": np.zeros((2, 2), np.float32)}, folder / name)
    return UpdateInfo(str(folder / name), tensors=1)
