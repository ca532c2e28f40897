"""Decodes and checks a version that comes as deltas before vLLM pauses. The result is a file in the
page cache (just written), so that the pause only copies.

vLLM's CPU engine multiplies by packed copies of its weights and packs whole layers, so it gets the
whole version. So does an engine that quantises layers, shuffles weights of experts, or derives
others from them. Any other engine gets the changed values and their positions, if it serves the
anchor or a version of one of the deltas. A staged file is used once: a second load reads the
version's own files.
"""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, serialize_file

from rollout.vllm.client.weight_loader import LoadRefused, WeightUpdate
from rollout.vllm_plugin.weight_file import BASE, POSITIONS, TAG, VALUES
from services.contracts.experts import expert_count
from services.weights import DeltaReader, UnusableBase, UnusableDelta, WholeVersion, in_threads

LATENT = "kv_lora_rank"
"""Key in the config of a model with multi-head latent attention."""
NARROW = 1 << 31
"""Positions in a tensor with fewer elements take 4 bytes."""


class Staging:
    def __init__(self, folder: Path, whole: bool) -> None:
        """`whole`: whether vLLM loads only whole layers."""
        self._file = folder / "staged.safetensors"
        self._whole = whole

    def stage(self, update: WeightUpdate, live: str | None) -> WeightUpdate:
        """Return `update` with a staged file, if that saves work in the pause. `live` is the
        version that the server serves. Raises LoadRefused for files that do not belong together."""
        if not update.deltas:
            return update
        try:
            with ExitStack() as stack:
                deltas = [stack.enter_context(DeltaReader(Path(path))) for path in update.deltas]
                if self._whole:
                    self._write(whole(Path(update.path), deltas), {"format": "pt"})
                    return replace(update, whole=str(self._file))
                starts = [i for i, delta in enumerate(deltas) if delta.base == live]
                if not starts:
                    return update
                changes = deltas[starts[-1] :]
                metadata = {BASE: changes[0].base, TAG: changes[-1].tag}
                self._write(patched(changes), metadata)
                return replace(update, patch=str(self._file))
        except (UnusableBase, UnusableDelta, OSError, SafetensorError) as error:
            raise LoadRefused(f"loading {update.tag}: {error}") from error

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def _write(self, arrays: dict[str, "StagedArray"], metadata: dict[str, str]) -> None:
        # A new file, because vLLM may still have mapped the one before.
        self._file.unlink(missing_ok=True)
        # Without a copy. numpy itself has no bfloat16.
        specs = {
            name: TensorSpec(
                dtype=array.dtype,
                shape=list(array.values.shape),
                data_ptr=array.values.ctypes.data,
                data_len=array.values.nbytes,
            )
            for name, array in arrays.items()
        }
        serialize_file(specs, self._file, metadata)


def only_whole(model: Path) -> bool:
    """Whether vLLM changes the layout of this model's weights on every device, so that single
    values cannot be changed (`weight_patch.patchable`)."""
    config = msgspec.json.decode((model / "config.json").read_bytes())
    inner = config.get("text_config") or {}
    latent = config.get(LATENT) or inner.get(LATENT)
    return expert_count(config) > 0 or latent is not None


@dataclass(frozen=True)
class StagedArray:
    dtype: str
    values: NDArray[Any]
    """Contiguous."""


def whole(base: Path, deltas: list[DeltaReader]) -> dict[str, StagedArray]:
    """Return all tensors of the version. The last delta's checksums are compared."""
    version = WholeVersion(base, deltas)
    tensors = in_threads(version.tensor, version.shapes)
    return {
        name: StagedArray("bfloat16", bits)
        for name, bits in zip(version.shapes, tensors, strict=True)
    }


def patched(deltas: list[DeltaReader]) -> dict[str, StagedArray]:
    """Return what several deltas change, in order: arrays `values/NUMBER/TENSOR` and
    `positions/NUMBER/TENSOR`."""
    arrays: dict[str, StagedArray] = {}
    for number, delta in enumerate(deltas):
        for patch in delta.patches():
            size = math.prod(patch.shape)
            positions = np.arange(size) if patch.positions is None else patch.positions
            narrow = np.int32 if size < NARROW else np.int64
            key = f"{number}/{patch.name}"
            arrays[f"{VALUES}/{key}"] = StagedArray("bfloat16", patch.values)
            arrays[f"{POSITIONS}/{key}"] = StagedArray(
                np.dtype(narrow).name, positions.astype(narrow)
            )
    return arrays
