"""Delta files, by docs/weights.md: a safetensors file with the bfloat16 values that one version
changed of its base, and the checksum of every tensor of the version.

A file may come from anywhere. `DeltaReader` checks names, counts, sizes and positions before it
gives them out. It cannot check values: the manifest has the file's checksum, and `WholeVersion`
compares the checksums of whole tensors.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from services.contracts.weights import parse_version_tag
from services.weights.positions import pack, unpack

FORMAT, VERSION = "headrace-delta", "1"
VALUES, LOW, HIGH = "values", "low", "high"
"""Kinds of array; the one of a tensor is called `KIND/TENSOR`."""
DENSE = 0.64
"""Share of changed elements above which all values take less than changed ones and positions."""
LARGEST_TENSOR = 1 << 40
"""Elements; more than any model has, and few enough for all arithmetic here."""


class UnusableDelta(ValueError):
    """A file that is no whole delta of this format, or does not follow what it is applied to."""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of the version that a delta leads to."""

    name: str
    shape: tuple[int, ...]
    xxh3: str
    """Of its bytes in the version (little endian, row by row), as 16 hex digits."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Patch:
    """What changed of one tensor."""

    name: str
    shape: tuple[int, ...]
    positions: NDArray[np.int64] | None
    """Rising flat indices of changed elements; None: `values` are all elements."""
    values: NDArray[np.uint16]
    """The bits of the new bfloat16 values."""


class DeltaWriter:
    """Collects the tensors of one version, then writes them."""

    def __init__(self, base: str, tag: str) -> None:
        """`base`, `tag`: version tags of what is changed, and of the result."""
        self._base, self._tag = base, tag
        self._tensors: list[Tensor] = []
        self._arrays: dict[str, NDArray[Any]] = {}
        self.bytes = 0
        """Of all arrays so far."""
        self.changed = 0
        """Elements that have changed so far."""

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        xxh3: str,
        positions: NDArray[np.int64],
        values: NDArray[np.uint16],
        all_values: NDArray[np.uint16] | None = None,
    ) -> None:
        """A tensor with its changes; none is right, too. `all_values`, flat, is written instead
        where that is smaller."""
        tensor = Tensor(name, shape, xxh3)
        self._tensors.append(tensor)
        self.changed += len(positions)
        if len(positions) == 0:
            return
        if all_values is not None and len(positions) > DENSE * tensor.size:
            # A copy: the caller changes its own for the next version.
            arrays: dict[str, NDArray[Any]] = {VALUES: all_values.copy()}
        else:
            low, high = pack(positions, tensor.size)
            arrays = {VALUES: values, LOW: low, HIGH: high}
        for kind, array in arrays.items():
            self._arrays[f"{kind}/{name}"] = array
            self.bytes += array.nbytes

    def write(self, path: Path, more: Mapping[str, str] | None = None) -> None:
        """Write the file, with `more` in its metadata. Raises OSError, SafetensorError."""
        metadata = {
            **(more or {}),
            "format": FORMAT,
            "version": VERSION,
            "dtype": "BF16",
            "base": self._base,
            "tag": self._tag,
            "tensors": msgspec.json.encode(self._tensors).decode(),
        }
        save_file(self._arrays, path, metadata=metadata)


class DeltaReader:
    """An open delta; use it in a `with` block.

    Raises UnusableDelta where the file is not what it claims to be, at once or when a patch is
    read. `path` is for messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file: Any = safe_open(path, framework="numpy")
            metadata = file.metadata() or {}
            arrays = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            raise UnusableDelta(f"cannot read {path}: {str(error)[:200]}") from error
        self._file = file
        self.base, self.tag, tensors = self._described(metadata)
        self.tensors = self._by_name(tensors)
        self.changed = self._changed(arrays)
        """Names of tensors with changes, in the order of `tensors`."""

    def __enter__(self) -> "DeltaReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def patches(self) -> Iterator[Patch]:
        """The changes of each changed tensor, one at a time."""
        return (self.patch(name) for name in self.changed)

    def patch(self, name: str) -> Patch:
        """The changes of one of the `changed` tensors."""
        tensor, sparse = self.tensors[name], self._sparse[name]
        try:
            values = self._file.get_tensor(f"{VALUES}/{name}")
            if not sparse:
                return Patch(name, tensor.shape, None, values)
            low = self._file.get_tensor(f"{LOW}/{name}")
            high = self._file.get_tensor(f"{HIGH}/{name}")
            return Patch(name, tensor.shape, unpack(low, high, tensor.size), values)
        except (OSError, SafetensorError, ValueError) as error:
            raise UnusableDelta(f"{self.path}: {name}: {str(error)[:200]}") from error

    def _described(self, metadata: dict[str, str]) -> tuple[str, str, list[Tensor]]:
        found = metadata.get("format"), metadata.get("version"), metadata.get("dtype")
        if found != (FORMAT, VERSION, "BF16"):
            raise UnusableDelta(
                f"{self.path} has format, version and dtype {found}, this process reads "
                f"{(FORMAT, VERSION, 'BF16')}"
            )
        try:
            for key in ("base", "tag"):
                parse_version_tag(metadata[key])
            tensors = msgspec.json.decode(metadata["tensors"], type=list[Tensor])
        except KeyError as error:
            raise UnusableDelta(f"{self.path} lacks {error} in its metadata") from None
        except (ValueError, RecursionError) as error:
            raise UnusableDelta(f"{self.path} has unusable metadata: {error}") from error
        return metadata["base"], metadata["tag"], tensors

    def _by_name(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        by_name: dict[str, Tensor] = {}
        for tensor in tensors:
            if not tensor.name or tensor.name in by_name:
                raise UnusableDelta(f"{self.path} names tensor {tensor.name!r} twice or not at all")
            if min(tensor.shape, default=0) < 0 or tensor.size > LARGEST_TENSOR:
                raise UnusableDelta(f"{self.path}: {tensor.name} has shape {list(tensor.shape)}")
            by_name[tensor.name] = tensor
        return by_name

    def _changed(self, arrays: dict[str, Any]) -> list[str]:
        """Names of changed tensors, once the arrays are found to be theirs."""
        kinds: dict[str, set[str]] = {}
        for array in arrays:
            kind, _, name = array.partition("/")
            if kind not in (VALUES, LOW, HIGH) or name not in self.tensors:
                raise UnusableDelta(f"{self.path} has an array {array!r} of no tensor")
            kinds.setdefault(name, set()).add(kind)
        for name, found in kinds.items():
            if found not in ({VALUES}, {VALUES, LOW, HIGH}):
                raise UnusableDelta(f"{self.path}: {name} has {sorted(found)} alone")
            for kind in found:
                self._check_array(arrays[f"{kind}/{name}"], kind, name)
            (count,) = arrays[f"{VALUES}/{name}"].get_shape()
            size = self.tensors[name].size
            lows = [count] if len(found) == 1 else arrays[f"{LOW}/{name}"].get_shape()
            if lows != [count] or not 0 < count <= size or (len(found) == 1 and count != size):
                raise UnusableDelta(f"{self.path}: {name} has {count} values for {size} elements")
        self._sparse = {name: len(found) == 3 for name, found in kinds.items()}
        return [name for name in self.tensors if name in kinds]

    def _check_array(self, array: Any, kind: str, name: str) -> None:
        dtype, shape = str(array.get_dtype()), array.get_shape()
        if dtype != ("U16" if kind == VALUES else "U8") or len(shape) != 1:
            raise UnusableDelta(f"{self.path}: {kind} of {name} are {dtype} {shape}")
