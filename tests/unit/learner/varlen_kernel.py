"""torch's varlen flash kernel in plain arithmetic, for machines without CUDA."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    causal: bool,
    scale: float,
    window: tuple[int, int],
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield each sequence's queries, keys, and masked scores [h, q, k]. Queries are aligned to the
    end of the keys, as in FlashAttention since 2.1."""
    repeats = query.shape[1] // key.shape[1]
    left, right = window[0], 0 if causal else window[1]
    pairs = zip(*(b.tolist() for b in bounds), *(b.tolist()[1:] for b in bounds), strict=False)
    for q0, k0, q1, k1 in pairs:
        q, k = query[q0:q1], key[k0:k1].repeat_interleave(repeats, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        apart = torch.arange(k1 - k0) - (torch.arange(q1 - q0) + (k1 - k0) - (q1 - q0))[:, None]
        seen = torch.ones_like(apart, dtype=torch.bool)
        seen &= (apart >= -left) if left >= 0 else seen
        seen &= (apart <= right) if right >= 0 else seen
        yield slice(q0, q1), slice(k0, k1), scores.masked_fill(~seen, -torch.inf)


def forward(*arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """`aten::_flash_attention_forward`."""
    query, key, value, q_bounds, k_bounds, longest, longest_keys, dropout, causal, debug = arguments
    assert (dropout, debug) == (0.0, False)
    assert longest == max(int(q_bounds.diff().max()), 2)
    assert longest_keys == int(k_bounds.diff().max())
    repeats = query.shape[1] // key.shape[1]
    window = options["window_size_left"], options["window_size_right"]
    out = torch.empty_like(query)
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_empty(query.shape[1], len(query), dtype=wide)
    for q, k, scores in _scores(query, key, (q_bounds, k_bounds), causal, options["scale"], window):
        lse[:, q] = scores.logsumexp(-1)
        v = value[k].repeat_interleave(repeats, 1)
        out[q] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return out, lse, torch.zeros(2), torch.zeros(0), torch.zeros(0)


def backward(*arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """`aten::_flash_attention_backward`."""
    grad, query, key, value, out, lse, q_bounds, k_bounds, _, _, dropout, causal, _, _ = arguments
    assert dropout == 0.0
    repeats = query.shape[1] // key.shape[1]
    window = options["window_size_left"], options["window_size_right"]
    scale = options["scale"]
    of_query = torch.zeros_like(query)
    of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
    for q, k, scores in _scores(query, key, (q_bounds, k_bounds), causal, scale, window):
        shares = (scores - lse[:, q, None]).exp().to(query.dtype)
        v = value[k].repeat_interleave(repeats, 1)
        slope = torch.einsum("qhd,khd->hqk", grad[q], v)
        slope = shares * (slope - (grad[q] * out[q]).sum(-1).T[:, :, None]) * scale
        wide = key[k].repeat_interleave(repeats, 1)
        of_query[q] = torch.einsum("hqk,khd->qhd", slope, wide)
        parts = torch.einsum("hqk,qhd->khd", slope, query[q])
        of_key[k] = parts.unflatten(1, (-1, repeats)).sum(2)
        parts = torch.einsum("hqk,qhd->khd", shares, grad[q])
        of_value[k] = parts.unflatten(1, (-1, repeats)).sum(2)
    return of_query, of_key, of_value


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Replace the varlen kernel's calls by this module."""
    patch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    patch.setattr(torch.ops.aten, "_flash_attention_backward", backward)
