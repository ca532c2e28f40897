"""Reads weight files for vLLM, and checks their tensors before the model is changed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.weights import DeltaReader, UnusableBase, UnusableDelta, WholeVersion

if TYPE_CHECKING:
    import torch

WEIGHTS_KEPT = "weights kept"
WEIGHTS_MIXED = "weights mixed"
"""The text of a failed update contains WEIGHTS_KEPT (the old weights are whole) or WEIGHTS_MIXED
(the model must not sample). vLLM passes on only the text."""

BASE, TAG = "base", "tag"
"""Metadata of a staged patch: its base version, and its result."""
POSITIONS, VALUES = "positions", "values"
"""Arrays of a staged patch: `values/NUMBER/TENSOR` and their positions in the flat tensor. Lower
numbers come first."""

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""By name: the type as safetensors spells it (F32, BF16, …) and the shape."""


class UnusableFile(ValueError):
    """A weight file that cannot be loaded."""


def read_tensors(path: Path) -> Tensors:
    """Return the tensors of a safetensors file, from its header alone.

    Raises UnusableFile for a file that is missing, truncated or not safetensors: the header has the
    byte range of every tensor, and safetensors compares it with the file's size.
    """
    # For a header, numpy's view is the same as torch's, and needs no import of torch.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: (str(part.get_dtype()), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise UnusableFile(f"cannot read {path}: {error}") from error


def check_tensors(path: Path, tensors: Tensors, expected: Tensors) -> None:
    """Raise UnusableFile with the first tensors that differ from `expected`."""
    if missing := sorted(expected.keys() - tensors.keys()):
        raise UnusableFile(f"{path} lacks {some(missing)}")
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise UnusableFile(f"{path} has tensors the model does not know: {some(unknown)}")
    if differing := sorted(name for name in tensors if tensors[name] != expected[name]):
        (dtype, shape), (own_dtype, own_shape) = tensors[differing[0]], expected[differing[0]]
        raise UnusableFile(
            f"{path}: {differing[0]} is {dtype} {list(shape)}, the model's was {own_dtype} "
            f"{list(own_shape)} ({len(differing)} of {len(expected)} tensors differ)"
        )


def some(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def stream(path: Path, deltas: Sequence[Path] = ()) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield (name, tensor) pairs, on the CPU, layer by layer, of a whole safetensors file with
    `deltas` applied. vLLM buffers tensors until a layer is complete, so the order limits its
    memory.

    Raises UnusableFile if a tensor does not have the checksum that the last delta names.
    """
    if deltas:
        yield from _patched(path, deltas)
        return
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys(), key=_natural):
            yield name, file.get_tensor(name)


def check_delta_files(path: Path, deltas: Sequence[Path]) -> None:
    """Raise UnusableFile unless `deltas` follow each other and the whole file `path`. Reads no
    weight."""
    with ExitStack() as stack:
        _version(path, deltas, stack)


def _patched(path: Path, deltas: Sequence[Path]) -> "Iterator[tuple[str, torch.Tensor]]":
    import torch

    with ExitStack() as stack:
        version = _version(path, deltas, stack)
        for name in sorted(version.shapes, key=_natural):
            try:
                bits = version.tensor(name)
            except (UnusableBase, UnusableDelta) as error:
                raise UnusableFile(str(error)) from error
            yield name, torch.from_numpy(bits).view(torch.bfloat16)


def _version(path: Path, deltas: Sequence[Path], stack: ExitStack) -> WholeVersion:
    """Open the version's files; `stack` closes them."""
    try:
        opened = [stack.enter_context(DeltaReader(delta)) for delta in deltas]
        return WholeVersion(path, opened)
    except (UnusableBase, UnusableDelta) as error:
        raise UnusableFile(str(error)) from error


def _natural(name: str) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]
