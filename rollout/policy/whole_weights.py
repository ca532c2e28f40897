"""One weight file in the published type, from a checkpoint's files in the type of training.

The learner rounds published versions in the same way (to nearest, ties to even), so a served
checkpoint equals the version of its step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from rollout.vllm_plugin.weight_file import read_tensors

TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types as a model's config spells them, and as safetensors does."""
_OTHERS = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "F64": "float64",
    "BOOL": "bool",
}
_LONG = {kind: name for name, kind in TYPES.items()} | _OTHERS
"""Types as safetensors' writer takes them."""
_BITS = {"F32": np.uint32, "BF16": np.uint16, "F16": np.uint16}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def is_whole(files: Sequence[Path], dtype: str) -> bool:
    """Whether the weights are one file, and all of its floating-point tensors have `dtype`. Raises
    UnusableFile."""
    if len(files) != 1:
        return False
    return all(
        of in (TYPES.get(dtype), None) for of in map(_floating, read_tensors(files[0]).values())
    )


def _floating(tensor: tuple[str, tuple[int, ...]]) -> str | None:
    return tensor[0] if tensor[0] in _BITS else None


def write_whole(files: Sequence[Path], dtype: str, file: Path) -> None:
    """Write the tensors of all `files` into `file`, with floating-point numbers in `dtype`. Raises
    ValueError for a type that is unknown, OSError, and SafetensorError."""
    kind = TYPES.get(dtype)
    if kind is None:
        raise ValueError(f"weights of type {dtype} cannot be served: {', '.join(TYPES)} can")
    arrays: dict[str, NDArray[Any]] = {}
    specs: dict[str, TensorSpec] = {}
    for path in files:
        for name, entry, bits in _tensors(path):
            target = kind if entry.dtype in _BITS else entry.dtype
            array = bits if target == entry.dtype else converted(bits, entry.dtype, target)
            arrays[name] = array
            specs[name] = TensorSpec(
                dtype=_LONG.get(target, target),
                shape=entry.shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
    serialize_file(specs, file, {"format": "pt"})


def _tensors(path: Path) -> "list[tuple[str, _Entry, NDArray[Any]]]":
    """Return the tensors of a file, mapped from the disk."""
    # safe_open compares positions and shapes with each other and with the file's size.
    with safe_open(path, framework="numpy"), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if header else np.empty(0, np.uint8)
    tensors = []
    for name, raw in header.items():
        entry = msgspec.json.decode(raw, type=_Entry)
        start, stop = entry.data_offsets
        tensors.append((name, entry, data[start:stop]))
    return tensors


def converted(raw: NDArray[np.uint8], dtype: str, target: str) -> NDArray[Any]:
    """Return the numbers of a tensor of type `dtype` in the type `target`, as bits."""
    bits = np.frombuffer(raw, _BITS[dtype])
    match dtype:
        case "BF16":
            numbers = (bits.astype(np.uint32) << 16).view(np.float32)
        case "F16":
            numbers = bits.view(np.float16).astype(np.float32)
        case _:
            numbers = bits.view(np.float32)
    match target:
        case "BF16":
            wide = numbers.view(np.uint32)
            rounded = ((wide + (((wide >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
            return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded)
        case "F16":
            with np.errstate(over="ignore"):
                return numbers.astype(np.float16).view(np.uint16)
        case _:
            return numbers.view(np.uint32)


UNUSABLE = (SafetensorError, ValueError, RecursionError)
