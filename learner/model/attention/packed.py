"""Attention over packed rows whose cost grows with the sequences, not with the square of the row.

transformers' own `sdpa` builds a dense [T, T] mask for a packed row. This implementation is
registered as `headrace_packed`. It knows where sequences begin and end, and computes in the type of
the pass. On CUDA in half precision it calls torch's varlen flash kernel. Elsewhere it arranges
sequences of similar length as rows [n, longest] for a causal kernel.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from learner.model.attention.context_parallel import RowPart, attend_together
from learner.model.attention.kernels import attend
from learner.model.attention.row_layout import PackedLayout, packed_layout

NAME = "headrace_packed"
GROWING = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on the longest position of a pass."""
KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: PackedLayout | None = None,
    sliding_window: int | None = None,
    part: RowPart | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence of `packed`.

    query [1, h, T, d], key and value [1, g, T, d] with g dividing h. Returns [1, T, h, d]. `part`:
    this rank has only a stretch of the T tokens of `packed`. Without `packed`, rows are separate
    sequences [b, h, t, d] (generation, tests), with as many keys as queries or more.
    """
    if attention_mask is not None or dropout:
        raise ValueError("packed attention takes neither a mask nor dropout")
    query, key, value = in_pass_type(query, key, value)
    if packed is None:
        return _separate(query, key, value, scaling, sliding_window), None
    # [T, heads, d]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    varlen = takes_varlen(query.device, query.dtype)
    calls = packed.varlen(sliding_window) if varlen else packed.blocks(sliding_window)
    if part is not None:
        return attend_together(q, k, v, calls, scaling, part)[None], None
    return attend(q, k, v, calls, scaling)[None], None


def in_pass_type(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return `tensors` (the last are the values) in the type of the pass: the autocast type, else
    the type of the values. Rotary embeddings and norms leave queries and keys in float32, and
    autocast does not reach the kernels."""
    device, kind = tensors[-1].device.type, tensors[-1].dtype
    if torch.is_autocast_enabled(device) and kind != torch.float64:
        kind = torch.get_autocast_dtype(device)
    return tuple(x.to(kind) for x in tensors)


def takes_varlen(device: torch.device, kind: torch.dtype) -> bool:
    """Whether torch's varlen flash kernel supports this type on `device`."""
    half = kind in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and half and torch.cuda.get_device_capability(device) >= (8, 0)


def _separate(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """[b, q, h, d] attention in separate rows, whose queries are the last of their keys."""
    rows, heads, queries, _ = query.shape
    keys = key.shape[2]
    if queries == 1:
        key, value = (x if window is None else x[:, :, -window:] for x in (key, value))
        out = F.scaled_dot_product_attention(
            query, key, value, scale=scaling, enable_gqa=heads != key.shape[1]
        )
        return out.transpose(1, 2)
    query = F.pad(query, (0, 0, keys - queries, 0))
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    layout = packed_layout([keys] * rows, query.device)
    varlen = takes_varlen(query.device, query.dtype)
    out = attend(q, k, v, layout.varlen(window) if varlen else layout.blocks(window), scaling)
    return out.unflatten(0, (rows, keys))[:, keys - queries :]


@dataclass(frozen=True)
class AttentionInUse:
    """A model's implementation of attention over packed rows, and the reason for it, in words."""

    implementation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.implementation}: {self.reason}"


def use_packed_attention(model: PreTrainedModel) -> str | None:
    """Switch `model` to packed attention if its layers support it. Return None, or why they do not.
    In that case packed rows go through the model's own mask, if it has one for them
    (`packing_check` refuses other models)."""
    why = _own_mask(model)
    if why is None:
        # Registered once: `compiling` replaces it if blocks are compiled.
        if NAME not in ALL_ATTENTION_FUNCTIONS:
            AttentionInterface.register(NAME, packed_attention)
        model.set_attn_implementation(NAME)
    return why


def attention_in_use(model: PreTrainedModel, autocast: torch.dtype | None) -> AttentionInUse:
    """Return the attention that the passes of `model` use on its device, and why."""
    if why := _own_mask(model):
        name = f"transformers' {model.config._attn_implementation}, with a mask of each row"
        return AttentionInUse(name, why)
    device, kind = model.device, autocast or model.dtype
    words = str(kind).removeprefix("torch.")
    if device.type != "cuda":
        return AttentionInUse("flash attention in blocks", f"the learner computes on a {device}")
    if takes_varlen(device, kind):
        return AttentionInUse("varlen flash attention", f"the passes are in {words} on CUDA")
    why = f"varlen flash attention has no {words}"
    if kind != torch.float32:
        why = "varlen flash attention needs compute capability 8.0, that of an A100"
    return AttentionInUse("memory-efficient attention in blocks", why)


def _own_mask(model: PreTrainedModel) -> str | None:
    """Return why a model needs its own mask, or None if packed attention computes the same."""
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    name = type(model).__name__
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return f"{name} caps its attention scores"
    if text.model_type == "gpt_oss":
        return f"{name} has learned attention sinks"
    unknown = sorted(set(getattr(text, "layer_types", None) or ()) - KNOWN_LAYERS)
    if "chunked_attention" in unknown:
        return f"{name} attends in chunks"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} bypasses transformers' attention interface"
    return None


def why_not_shared(model: PreTrainedModel, ranks: int) -> str | None:
    """Return why `ranks` ranks cannot share rows of `model`, or None if they can."""
    config, name = model.config.get_text_config(), type(model).__name__
    if (reason := _own_mask(model)) is not None:
        return reason
    heads = config.num_attention_heads
    if heads % ranks:
        return f"{name} has {heads} attention heads, which {ranks} ranks cannot share evenly"
    scaling = getattr(config, "rope_parameters", None) or {}
    by_layer = [each for each in scaling.values() if isinstance(each, dict)]
    kinds = {each.get("rope_type") for each in (scaling, *by_layer)}
    if growing := [kind for kind in GROWING if kind in kinds]:
        return f"{name}'s rotary embeddings ({growing[0]}) depend on the longest position of a pass"
    return None
