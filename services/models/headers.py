"""Reads the headers of safetensors files: their tensors, without a weight."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

import msgspec
from safetensors import SafetensorError, safe_open

from services.models.errors import UnusableFolder

LARGEST_HEADER = 16 << 20
"""Bytes; about 120,000 tensors in one file."""
LARGEST_HEADERS = 64 << 20
"""Bytes, for all files of a folder together."""


BLOCK = 1 << 20
"""Bytes that are compared at once."""


class Header(NamedTuple):
    """The header entry of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Named as in safetensors: F32, BF16."""


class Tensors(dict[str, tuple[int, ...]]):
    """The shapes of tensors by name."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]] | None = None, types: Iterable[str] = ()
    ) -> None:
        super().__init__(shapes or {})
        self.types = Counter(types)
        """Number of weights by type."""

    def add(self, header: Header) -> None:
        """Add a tensor."""
        self[header.name] = header.shape
        self.types[header.dtype] += prod(header.shape)

    @property
    def elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(prod(shape) for shape in self.values())


class Headers:
    """Reads headers of files of one folder, up to `LARGEST_HEADERS` together."""

    def __init__(self) -> None:
        self._left = LARGEST_HEADERS

    def tensors(self, descriptor: int, path: Path) -> Iterator[Header]:
        """Yield each tensor of the open file. Raises UnusableFolder unless it is a whole
        safetensors file, whose header leaves the folder within its limits. `path` is for
        messages."""
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        self._left -= length
        if length > LARGEST_HEADER or self._left < 0:
            raise UnusableFolder(
                f"{path} has a header of {length:,} bytes, and {LARGEST_HEADER:,} are read at most "
                f"({LARGEST_HEADERS:,} in a folder): write the weights again with save_pretrained"
            )
        try:
            # By its descriptor: the name may lead to another file by now.
            with safe_open(f"/proc/self/fd/{descriptor}", framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118, it is no mapping
                    part = file.get_slice(name)
                    yield Header(name, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError, ValueError, OverflowError) as error:
            raise UnusableFolder(
                f"{path} is no whole safetensors file ({str(error)[:200]}): copy it again, or "
                "write the weights again with save_pretrained"
            ) from error


class _Place(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def same_tensor(files: Iterable[int], first: str, second: str) -> bool:
    """Return whether two tensors of a model have the same bytes. `files` are descriptors of its
    files, whose headers were checked. Reads both up to the first difference."""
    places = [_find(files, name) for name in (first, second)]
    (file, tensor_name, begin), (other_file, other, other_begin) = places
    if (tensor_name.dtype, tensor_name.shape) != (other.dtype, other.shape):
        return False
    size = tensor_name.data_offsets[1] - tensor_name.data_offsets[0]
    return all(
        os.pread(file, min(BLOCK, size - at), begin + at)
        == os.pread(other_file, min(BLOCK, size - at), other_begin + at)
        for at in range(0, size, BLOCK)
    )


def _find(files: Iterable[int], name: str) -> tuple[int, _Place, int]:
    """Return the file of a tensor, its header entry, and its first byte."""
    for file in files:
        length = int.from_bytes(os.pread(file, 8, 0), "little")
        header = msgspec.json.decode(os.pread(file, length, 8), type=dict[str, msgspec.Raw])
        if name in header:
            place = msgspec.json.decode(header[name], type=_Place)
            return file, place, 8 + length + place.data_offsets[0]
    raise UnusableFolder(f"no file has {name}")
