"""Changes single values of a model's weights in place, with vLLM's own loader of patches.

That loader takes checkpoint names: it finds the part of a fused or sharded parameter that a value
belongs to. It copies into parameters as they are. So a model is patched only if vLLM holds its
weights like a checkpoint; otherwise the whole version is loaded.

vLLM's loader marks unchanged values by NaN in tensors as large as the checkpoint's, which the cache
does not leave room for: CHUNK limits them, and `services.estimate.rollout_memory` counts them. The
loader does not undo its writes when it fails, so `engine` then loads a whole version.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.checkpoint_weight_patch import (
    CheckpointWeightPatch,
    load_checkpoint_weight_patches,
)

from rollout.vllm_plugin.weight_file import (
    BASE,
    POSITIONS,
    TAG,
    VALUES,
    Tensors,
    UnusableFile,
)

PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
CHUNK = 128 << 20
"""Most bytes of tensors that are patched together on the device, unless one tensor is larger. A
smaller chunk would cost time: each takes 1 ms on the host."""


def patchable(model: torch.nn.Module) -> bool:
    """Whether vLLM holds every weight like a checkpoint: nothing quantised, packed or shuffled, and
    nothing derived from weights (multi-head latent attention)."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, QuantizeMethodBase) and not isinstance(method, PLAIN):
            return False
        if isinstance(layer, MLAAttention) or hasattr(layer, "cpu_linear"):
            return False
    return True


def check_patch(path: Path, base: str, tag: str, tensors: Tensors) -> None:
    """Raise UnusableFile unless the staged patch leads from the loaded version `base` to `tag`, and
    changes only bfloat16 `tensors`. Reads no value."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
        if (versions := (metadata.get(BASE), metadata.get(TAG))) != (base, tag):
            raise UnusableFile(
                f"{path} leads from {versions[0]} to {versions[1]}, not {base} to {tag}"
            )
        for _, name in _parts(file):
            if name not in tensors:
                raise UnusableFile(f"{path} changes {name}, which the model does not have")
            if tensors[name][0] != "BF16":
                raise UnusableFile(f"{path} changes {name}, which is {tensors[name][0]}")


def apply_patch(model: torch.nn.Module, path: Path, tensors: Tensors, device: torch.device) -> None:
    """Apply the staged patch to `model`, a chunk at a time. Raises ValueError for positions outside
    a tensor or values that are NaN, and whatever the model's loader raises."""
    with _opened(path, str(device)) as file:
        for parts in _chunks(_parts(file), tensors):
            load_checkpoint_weight_patches(
                model,
                [_patch(file, number, name, tensors) for number, name in parts],
                max_chunk_bytes=CHUNK,
                validate_unique_indices=False,
            )


def _chunks(
    parts: Sequence[tuple[int, str]], tensors: Tensors
) -> Iterator[Sequence[tuple[int, str]]]:
    """Cut `parts`, in their order, into chunks of tensors of at most CHUNK bytes, or of one."""
    begin, size = 0, 0
    for place, (_, name) in enumerate(parts):
        more = torch.bfloat16.itemsize * math.prod(tensors[name][1])
        if place > begin and size + more > CHUNK:
            yield parts[begin:place]
            begin, size = place, 0
        size += more
    yield parts[begin:]


def _patch(file: Any, number: int, name: str, tensors: Tensors) -> CheckpointWeightPatch:
    return CheckpointWeightPatch(
        name,
        tensors[name][1],
        torch.bfloat16,
        file.get_tensor(f"{VALUES}/{number}/{name}"),
        file.get_tensor(f"{POSITIONS}/{number}/{name}"),
    )


def _opened(path: Path, device: str = "cpu") -> Any:
    try:
        return safe_open(path, framework="pt", device=device)
    except (OSError, SafetensorError) as error:
        raise UnusableFile(f"cannot read {path}: {error}") from error


def _parts(file: Any) -> list[tuple[int, str]]:
    """Return (number, tensor), ordered by number."""
    parts = [key.split("/", 2) for key in file.keys() if key.startswith(f"{VALUES}/")]  # noqa: SIM118
    return sorted((int(number), name) for _, number, name in parts)
