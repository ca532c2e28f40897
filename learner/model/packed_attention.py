"""Attention over packed rows that costs what the sequences cost, not the square of the row.

transformers' own `sdpa` builds a dense [T, T] mask for a packed row. This implementation,
registered under the name `headrace_packed`, knows where sequences begin and end. On CUDA in half
precision it calls torch's varlen kernel; elsewhere it arranges sequences of similar length as rows
[n, longest] for the causal kernel. Padding exists only inside that call, at the right end, where
the causal mask hides it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel

NAME = "headrace_packed"
SIMILAR, SHORT = 0.75, 64
"""A block's shortest sequence has this share of its longest's tokens, or the longest is no longer
than SHORT: there another kernel call costs more than the padding."""


@dataclass(frozen=True)
class Block:
    """Sequences that attend in one call of the causal kernel."""

    rows: torch.Tensor
    """[n, longest] token index of each place."""
    places: torch.Tensor
    """[tokens] place in the flattened [n · longest] of each token."""


@dataclass(frozen=True)
class PackedLayout:
    """Where the sequences of one packed row lie, made once and used by every layer."""

    lengths: tuple[int, ...]
    bounds: torch.Tensor
    """[n + 1] int32: first token of each sequence, then the total."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The sequences, longest first, in blocks."""
        order = sorted(range(len(self.lengths)), key=lambda i: -self.lengths[i])
        cuts: list[list[int]] = []
        for index in order:
            longest = self.lengths[cuts[-1][0]] if cuts else 0
            if not cuts or (longest > SHORT and self.lengths[index] < SIMILAR * longest):
                cuts.append([])
            cuts[-1].append(index)
        return tuple(self._block(cut) for cut in cuts)

    @cached_property
    def back(self) -> torch.Tensor | None:
        """[T] where each token lies among those of the blocks; None where that is its place."""
        tokens = torch.cat([block.rows.flatten()[block.places] for block in self.blocks])
        return None if bool((tokens.diff() == 1).all()) else tokens.argsort()

    def _block(self, chosen: list[int]) -> Block:
        first = self.bounds[:-1].long()[chosen][:, None]
        column = torch.arange(self.lengths[chosen[0]], device=first.device)
        inside = column < self.bounds.diff()[chosen][:, None]
        # Places beyond a sequence's end repeat its first token; no real token attends to them.
        rows = torch.where(inside, first + column, first)
        return Block(rows, inside.flatten().nonzero().squeeze(1))


def packed_layout(lengths: list[int], device: torch.device | str = "cpu") -> PackedLayout:
    """The layout of sequences of these lengths, in this order."""
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    return PackedLayout(tuple(lengths), bounds.int().to(device))


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
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence of `packed`.

    query [1, h, T, d], key and value [1, g, T, d] with g dividing h. Returns [1, T, h, d].
    Without `packed`, rows are separate sequences [b, h, t, d] (generation, tests).
    """
    if packed is None:
        return _rows(query, key, value, attention_mask, scaling, dropout, sliding_window), None
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        return _varlen(query, key, value, scaling, packed, sliding_window), None
    # [T, heads, d]
    tokens = [x[0].transpose(0, 1) for x in (query, key, value)]
    parts = []
    for block in packed.blocks:
        # [n, heads, longest, d]
        q, k, v = (x[block.rows].transpose(1, 2) for x in tokens)
        out = _rows(q, k, v, None, scaling, dropout, sliding_window)
        parts.append(out.flatten(0, 1)[block.places])
    flat = torch.cat(parts)
    return (flat if packed.back is None else flat[packed.back])[None], None


def _rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    queries, keys = query.shape[2], key.shape[2]
    if mask is None and (queries != keys or (window is not None and keys > window)):
        back = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]
        mask = ((back >= 0) & (back < (window or keys))).to(query.device)
    out = F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=mask is None, scale=scaling
    )
    return out.transpose(1, 2)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    packed: PackedLayout,
    window: int | None,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        packed.bounds,
        packed.bounds,
        packed.longest,
        packed.longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor)
    return out[None]


def use_packed_attention(model: PreTrainedModel) -> bool:
    """Switch `model` to packed attention where its layers can; False where they cannot.

    They cannot when the model bypasses the attention interface or caps attention scores (Gemma
    2) or learns attention sinks (gpt-oss): then packed rows go through the model's own mask, where
    it has one for them (`packable` refuses the others).
    """
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    plain = getattr(text, "attn_logit_softcapping", None) is None and text.model_type != "gpt_oss"
    if not (plain and getattr(model, "_supports_attention_backend", False)):
        return False
    AttentionInterface.register(NAME, packed_attention)
    model.set_attn_implementation(NAME)
    return True
