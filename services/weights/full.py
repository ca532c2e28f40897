"""Whole weight files, and versions made from them with deltas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from services.weights.delta_format import DeltaReader, Patch, UnusableDelta


class UnusableBase(ValueError):
    """A whole file that is damaged, or is another version than the delta's base."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class TensorSpan:
    """The position of a tensor in a file: from byte `start` to before byte `stop`."""

    shape: tuple[int, ...]
    start: int
    stop: int


def layout(path: Path) -> dict[str, TensorSpan]:
    """Return the tensors of a whole file by name, all of them bfloat16. Raises UnusableBase."""
    try:
        # safe_open compares positions and shapes with each other and with the file's size.
        with safe_open(path, framework="numpy"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise UnusableBase(f"cannot read {path}: {str(error)[:200]}") from error
    for name, entry in entries.items():
        if entry.dtype != "BF16":
            raise UnusableBase(f"{path}: {name} is {entry.dtype}; deltas change BF16 alone")
    data = 8 + length
    return {
        name: TensorSpan(entry.shape, data + entry.data_offsets[0], data + entry.data_offsets[1])
        for name, entry in entries.items()
    }


def tensor_checksum(values: NDArray[np.uint16]) -> str:
    """Return the xxh3 (64 bit, hex) of a tensor's bytes. `values` must be contiguous."""
    return xxhash.xxh3_64_hexdigest(values.data)


def changes(
    base: NDArray[np.uint16], new: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Return (positions, values) of the elements that differ in their bits: 0 and -0 differ, a NaN
    equals itself."""
    old, now = base.reshape(-1), new.reshape(-1)
    positions = np.flatnonzero(old != now)
    return positions, now[positions]


def apply(patch: Patch, values: NDArray[np.uint16]) -> None:
    """Apply a patch in place to a tensor with the elements `values`."""
    if patch.positions is None:
        values[:] = patch.values
    else:
        values[patch.positions] = patch.values


class WholeVersion:
    """All weights of a version, from the whole file of an earlier version and the deltas after
    it."""

    def __init__(self, base: Path, deltas: Sequence[DeltaReader]) -> None:
        """Raises UnusableBase, and UnusableDelta if the deltas do not follow each other or the
        whole file. Checksums are not compared here."""
        self._base, self._deltas = base, deltas
        self._places = layout(base)
        for before, after in pairwise(deltas):
            if after.base != before.tag:
                raise UnusableDelta(f"{after.path} changes {after.base}, and not {before.tag}")
        for delta in deltas:
            _check_shapes(base, self._places, delta)
        self._content = np.memmap(base, np.uint8, "r")
        self._patches = [(delta, set(delta.changed)) for delta in deltas]
        self._checked = deltas[-1].tensors if deltas else {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self._places.items()}

    def tensor(self, name: str) -> NDArray[np.uint16]:
        """Return a copy of a tensor's bits, in its shape. Raises UnusableDelta, and UnusableBase if
        its checksum differs from the last delta's."""
        place = self._places[name]
        values = self._content[place.start : place.stop].view(np.uint16).copy()
        for delta, changed in self._patches:
            if name in changed:
                apply(delta.patch(name), values)
        if self._deltas and tensor_checksum(values) != self._checked[name].xxh3:
            raise UnusableBase(
                f"{name} of version {self._deltas[-1].tag} is wrong: {self._base} is not version "
                f"{self._deltas[0].base}, or is damaged"
            )
        return values.reshape(place.shape)


def _check_shapes(path: Path, spans: Mapping[str, TensorSpan], delta: DeltaReader) -> None:
    if spans.keys() != delta.tensors.keys():
        other = sorted(spans.keys() ^ delta.tensors.keys())
        raise UnusableDelta(f"{delta.path} and {path} differ in {len(other)} tensors: {other[:3]}")
    for name, tensor in delta.tensors.items():
        if spans[name].shape != tensor.shape:
            raise UnusableDelta(
                f"{delta.path}: {name} has shape {list(tensor.shape)}, in {path} "
                f"{list(spans[name].shape)}"
            )
