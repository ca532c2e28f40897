"""Versions of weights: random bfloat16 tensors, and steps that change a share of them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from services.weights import DeltaWriter, changes, tensor_checksum

Bits = NDArray[np.uint16]

TENSOR = 8 << 20
"""Weights of each synthetic tensor."""


def weights(count: int, seed: int) -> dict[str, Bits]:
    """Random bfloat16 weights, by tensor."""
    random = np.random.default_rng(seed)
    names = range(max(1, count // TENSOR))
    size = min(count, TENSOR)
    return {f"layers.{n}.weight": _bits(random.normal(0, 0.02, size)) for n in names}


def step(before: Mapping[str, Bits], share: float, seed: int) -> dict[str, Bits]:
    """Weights of which this share has another value, spread at random: the next value that
    bfloat16 has, as after a small step."""
    random = np.random.default_rng(seed)
    return {
        name: (bits ^ (random.random(bits.size, np.float32) < share)).astype(np.uint16)
        for name, bits in before.items()
    }


def _bits(values: NDArray[np.float64]) -> Bits:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_full(path: Path, now: Mapping[str, Bits]) -> None:
    """A version's whole file."""
    save_file(
        {
            name: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
            for name, bits in now.items()
        },
        path,
    )


def write_delta(path: Path, old: Mapping[str, Bits], new: Mapping[str, Bits], version: int) -> None:
    """The file that leads from one version to the next."""
    delta = DeltaWriter(f"aa:{version - 1}", f"aa:{version}")
    for name, bits in new.items():
        delta.add(name, bits.shape, tensor_checksum(bits), *changes(old[name], bits))
    delta.write(path)
