"""Delta files (docs/weights.md): a safetensors file with the bfloat16 values that one version
changed of its base, and the checksum of every tensor of the version.

A file may come from anywhere. `DeltaReader` checks names, counts, sizes and positions before it
returns them. It cannot check values: the manifest has the file's checksum, and `WholeVersion`
compares the checksums of whole tensors.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from services.contracts.weights import parse_version_tag
from services.weights.positions import high_bytes, pack, unpack

FORMAT, VERSION = "headrace-delta", "1"
ARRAYS = {"values": np.uint16, "low": np.uint8, "high": np.uint8}
"""The arrays of a file: each has the entries of all tensors, one after the other."""
DENSE = 0.64
"""Share of changed elements above which all values take less space than changed values with
positions."""
LARGEST_TENSOR = 1 << 40
"""Maximum elements of a tensor: more than any model has, and few enough for all arithmetic here."""


class UnusableDelta(ValueError):
    """A file that is incomplete, has another format, or does not follow its base."""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of the version that a delta leads to."""

    name: str
    shape: tuple[int, ...]
    xxh3: str
    """Checksum of its bytes in the version (little endian, row by row), as 16 hex digits."""
    values: int
    """Number of values in the file: of changed elements, or of all."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def lengths(self) -> dict[str, int]:
        """Count this tensor's entries in each array, by the array's name."""
        if self.values == self.size:
            return {"values": self.values, "low": 0, "high": 0}
        high = high_bytes(self.values, self.size) if self.values else 0
        return {"values": self.values, "low": self.values, "high": high}


@dataclass(frozen=True)
class Patch:
    name: str
    shape: tuple[int, ...]
    positions: NDArray[np.int64] | None
    """Rising flat indices of changed elements; None: `values` are all elements."""
    values: NDArray[np.uint16]
    """The bits of the new bfloat16 values."""


class DeltaWriter:
    def __init__(self, base: str, tag: str) -> None:
        """`base` and `tag` are the version tags of the base, and of the result."""
        self._base, self._tag = base, tag
        self._tensors: list[Tensor] = []
        self._arrays: dict[str, list[NDArray[Any]]] = {name: [] for name in ARRAYS}
        self.bytes = 0
        """Size of the file so far, without its constant overhead."""
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
        """Add a tensor and its changes, if any. `all_values`, flat, is written instead if that is
        smaller."""
        size = math.prod(shape)
        self.changed += len(positions)
        arrays: dict[str, NDArray[Any]] = {"values": values}
        if all_values is not None and len(positions) > DENSE * size:
            # A copy: the caller changes its own array for the next version.
            arrays = {"values": all_values.copy()}
        elif 0 < len(positions) < size:
            arrays["low"], arrays["high"] = pack(positions, size)
        self._tensors.append(Tensor(name, shape, xxh3, len(arrays["values"])))
        # Quotes are escaped: it is JSON in JSON.
        described = msgspec.json.encode(self._tensors[-1])
        self.bytes += len(described) + described.count(b'"') + 1
        for kind, array in arrays.items():
            self._arrays[kind].append(array)
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
        arrays = {
            kind: np.concatenate([np.zeros(0, dtype), *self._arrays[kind]], dtype=dtype)
            for kind, dtype in ARRAYS.items()
        }
        save_file(arrays, path, metadata=metadata)


class DeltaReader:
    """An open delta; use it in a `with` block.

    Raises UnusableDelta for an invalid file, at once or when a patch is read. `path` is for
    messages.
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
        self.changed = [tensor.name for tensor in tensors if tensor.values]
        """Names of tensors with changes, in the order of `tensors`."""
        self._starts = self._placed(tensors, arrays)

    def __enter__(self) -> "DeltaReader":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def patches(self) -> Iterator[Patch]:
        return (self.patch(name) for name in self.changed)

    def patch(self, name: str) -> Patch:
        tensor, starts = self.tensors[name], self._starts[name]
        try:
            part = {
                kind: self._file.get_slice(kind)[starts[kind] : starts[kind] + length]
                for kind, length in tensor.lengths.items()
                if length
            }
            positions = unpack(part["low"], part["high"], tensor.size) if "low" in part else None
        except (OSError, SafetensorError, ValueError) as error:
            raise UnusableDelta(f"{self.path}: {name}: {str(error)[:200]}") from error
        return Patch(name, tensor.shape, positions, part["values"])

    def _described(self, metadata: dict[str, str]) -> tuple[str, str, list[Tensor]]:
        kind = metadata.get("format"), metadata.get("version"), metadata.get("dtype")
        if kind != (FORMAT, VERSION, "BF16"):
            raise UnusableDelta(
                f"{self.path} has format, version and dtype {kind}, this process reads "
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

    def _placed(self, tensors: list[Tensor], arrays: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Return the first entry of each tensor in each array. Raises UnusableDelta unless the
        arrays are as long as all tensors together."""
        starts, at = {}, dict.fromkeys(ARRAYS, 0)
        for tensor in tensors:
            if not 0 <= tensor.values <= tensor.size:
                raise UnusableDelta(
                    f"{self.path}: {tensor.name} has {tensor.values} values for {tensor.size} "
                    "elements"
                )
            starts[tensor.name] = dict(at)
            for kind, length in tensor.lengths.items():
                at[kind] += length
        actual = {name: (str(a.get_dtype()), a.get_shape()) for name, a in arrays.items()}
        types = {"values": "U16", "low": "U8", "high": "U8"}
        expected = {name: (types[name], [length]) for name, length in at.items()}
        if actual != expected:
            raise UnusableDelta(f"{self.path} has the arrays {actual}, its tensors need {expected}")
        return starts
