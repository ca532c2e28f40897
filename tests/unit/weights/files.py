"""Whole weight files and deltas, from arrays of bfloat16 bits."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from services.contracts.weights import WeightManifest
from services.weights import DeltaReader, DeltaWriter, WholeVersion, changes, tensor_checksum

Weights = dict[str, NDArray[np.uint16]]


def bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the values as bfloat16 bits, cut and not rounded."""
    return np.asarray((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))


def save_full(path: Path, weights: Weights) -> None:
    """Write a whole file, as a learner does."""
    tensors = {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in weights.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def save_delta(path: Path, base: Weights, new: Weights, old: str = "a:1", tag: str = "a:2") -> None:
    """Write the delta from `base`, version `old`, to `new`, version `tag`."""
    writer = DeltaWriter(old, tag)
    for name, values in new.items():
        found = changes(base[name], values)
        writer.add(name, values.shape, tensor_checksum(values), *found, values.reshape(-1))
    writer.write(path)


def read_version(root: Path, manifest: WeightManifest) -> dict[str, torch.Tensor]:
    """Read the version like a reader without an earlier one."""
    whole, *deltas = [root / file.name for file in manifest.files]
    if not deltas:
        return load_file(whole)
    with ExitStack() as stack:
        opened = [stack.enter_context(DeltaReader(path)) for path in deltas]
        assert opened[-1].tag == manifest.tag
        version = WholeVersion(whole, opened)
        found = {name: version.tensor(name) for name in version.shapes}
    return {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in found.items()}
