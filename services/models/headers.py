"""The tensors that safetensors files name, by their headers. No weight is read."""

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from services.models.errors import UnusableFolder

LARGEST_HEADER = 16 << 20
"""Bytes; about 120,000 tensors in one file."""
LARGEST_HEADERS = 64 << 20
"""Bytes, of all files of a folder."""


class Tensors(dict[str, tuple[int, ...]]):
    """Shapes by name."""

    @property
    def elements(self) -> int:
        """Of all tensors."""
        return sum(prod(shape) for shape in self.values())


class Headers:
    """Reads headers of files of one folder, up to `LARGEST_HEADERS` together."""

    def __init__(self) -> None:
        self._left = LARGEST_HEADERS

    def tensors(self, descriptor: int, path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor of the open file. Raises UnusableFolder for one that is no
        whole safetensors file. `path` is for messages."""
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
                    yield name, tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError, ValueError, OverflowError) as error:
            raise UnusableFolder(
                f"{path} is no whole safetensors file ({str(error)[:200]}): copy it again, or "
                "write the weights again with save_pretrained"
            ) from error
