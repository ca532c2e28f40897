"""Whole weight files and deltas, from arrays of bfloat16 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from services.weights import DeltaWriter, changes, tensor_checksum

Weights = dict[str, NDArray[np.uint16]]


def bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Of the values as bfloat16, cut and not rounded."""
    return np.asarray((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def save_full(path: Path, weights: Weights) -> None:
    """A whole file, as a learner writes it."""
    tensors = {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in weights.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def save_delta(path: Path, base: Weights, new: Weights, old: str = "a:1", tag: str = "a:2") -> None:
    """The delta from `base`, version `old`, to `new`, version `tag`."""
    writer = DeltaWriter(old, tag)
    for name, values in new.items():
        found = changes(base[name], values)
        writer.add(name, values.shape, tensor_checksum(values), *found, values.reshape(-1))
    writer.write(path)
