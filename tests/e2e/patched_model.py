"""A model that loads checkpoint names into fused and sharded parameters as vLLM's do, and the
engine on it. Imports vLLM, as `breakable_engine` does."""

from collections.abc import Iterable
from pathlib import Path

import torch

from rollout.vllm_plugin.weight_engine import SafetensorsEngine, UpdateInfo, WeightTransferError
from rollout.vllm_plugin.weight_file import stream

__all__ = ["Patched", "UpdateInfo", "WeightTransferError"]


class Model(torch.nn.Module):
    """`gate` and `up` [4, 6] are one parameter; of `down` [6, 4] this process has the last two of
    four columns, as the second of two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.zeros(8, 6, dtype=torch.bfloat16), False)
        self.down = torch.nn.Parameter(torch.zeros(6, 2, dtype=torch.bfloat16), False)
        self.breaks = False

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            match name:
                case "gate":
                    self.gate_up.narrow(0, 0, 4).copy_(tensor)
                case "up":
                    if self.breaks:
                        raise RuntimeError("cannot load up")
                    self.gate_up.narrow(0, 4, 4).copy_(tensor)
                case "down":
                    self.down.copy_(tensor.narrow(1, 2, 2))
        return {"gate_up", "down"}


class Patched(SafetensorsEngine):
    """Loads whole versions without vLLM's way of taking layers apart."""

    def __init__(self) -> None:
        self._tensors = None
        self._live = ""
        self._slot = None
        self.model = Model()
        self.device = torch.device("cpu")
        self.loads = 0

    def _load(self, path: Path, deltas: list[Path]) -> None:
        self.loads += 1
        breaks, self.model.breaks = self.model.breaks, False
        self.model.load_weights(stream(path, deltas))
        self.model.breaks = breaks
