"""Attention over the segments of a packed row, with exact gradients, composed of kernel calls.

Each part of a row's attention (`row_layout`) is one call of a kernel. The call also returns the
log-sum-exp of its scores, by which parts are merged: with lse = log Σ exp(lse_p), the output is Σ
exp(lse_p − lse) · out_p. In the backward pass each kernel gets the merged output and log-sum-exp.
It then computes its share of the softmax over all keys, and its gradients are exact parts of the
whole (as in ring attention, Liu et al. 2023, arXiv:2310.01889).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from learner.model.attention.row_calls import Block, VarlenCall

Call = Block | VarlenCall
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The gradients of queries, keys and values."""


class Attended(NamedTuple):
    """Inputs and merged results of attention, for the backward pass."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    scaling: float


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    calls: Sequence[Call],
    scaling: float | None = None,
) -> torch.Tensor:
    """[T, h, d] attention of `query` [T, h, d] to `key` [T, g, d] and `value` [T, g, e], all of one
    type, by `calls`. The `first` calls cover each query once. g divides h."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    size = value.shape[-1]
    # Zeros change neither scores nor sums. The kernels need queries and values of one size, the
    # varlen kernel a multiple of 8.
    width = max(query.shape[-1], size)
    if query.is_cuda:
        width = -(-width // 8) * 8
    query, key, value = (
        x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
        for x in (query, key, value)
    )
    out: torch.Tensor = _Attention.apply(query, key, value, calls, scaling)
    return out[..., :size]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        calls: Sequence[Call],
        scaling: float,
    ) -> torch.Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        merges = not all(call.first for call in calls)
        if len(calls) == 1 and calls[0].places.whole(query):
            out, lse = _forward(calls[0], query, key, value, scaling)
        else:
            out = torch.zeros_like(query, dtype=wide if merges else query.dtype)
            lse = query.new_zeros(query.shape[:2], dtype=wide)
            for call in calls:
                merge(call, out, lse, *_forward(call, query, key, value, scaling))
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.options = (calls, scaling)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        calls, scaling = ctx.options
        attended = Attended(query, key, value, out, lse, scaling)
        if len(calls) == 1 and calls[0].places.whole(query) and calls[0].key_places.whole(key):
            return (*_backward(calls[0], grads[0], attended), None, None)
        # Sums of parts in float32 or wider.
        totals = [torch.zeros_like(x, dtype=lse.dtype) for x in (query, key, value)]
        for call in calls:
            parts = _backward(call, grads[0], attended)
            where = (call.places, call.key_places, call.key_places)
            for total, part, places in zip(totals, parts, where, strict=True):
                places.add(total, part)
        of_query, of_key, of_value = (total.to(query.dtype) for total in totals)
        return of_query, of_key, of_value, None, None


def merge(
    call: Call, out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> None:
    """Merge the result of one call, `part` [m, h, d] and `part_lse` [m, h], into output [T, h,
    d] and log-sum-exp [T, h] of the earlier calls. Results of calls with `first` are added to
    zeros."""
    if call.first:
        call.places.add(out, part)
        call.places.add(lse, part_lse)
        return
    before = call.places.take(lse)
    after = torch.logaddexp(before, part_lse.to(lse.dtype))
    share = (part_lse - after).exp_().unsqueeze(-1)
    call.places.add(out, (part - call.places.take(out)).mul_(share))
    call.places.put(lse, after)


def _forward(
    call: Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output [m, h, d] and log-sum-exp [m, h] of one call, at its `places`."""
    if isinstance(call, VarlenCall):
        return _varlen_forward(call, query, key, value, scaling)
    # [n, heads, length, d]
    q = call.queries.take(query).transpose(1, 2)
    k, v = (call.keys.take(x).transpose(1, 2) for x in (key, value))
    out, lse = dense_forward(q, k, v, call.causal, scaling)
    return call.queries.flat(out.transpose(1, 2)), call.queries.flat(lse.transpose(1, 2))


def _backward(call: Call, grad: torch.Tensor, attended: Attended) -> Gradients:
    """Return the gradients of one call's queries [m, h, d], keys and values [n, g, d], at its
    places."""
    if isinstance(call, VarlenCall):
        return _varlen_backward(call, grad, attended)
    queries, keys = call.queries, call.keys
    slope, q, merged = (
        queries.take(x).transpose(1, 2) for x in (grad, attended.query, attended.out)
    )
    k, v = (keys.take(x).transpose(1, 2) for x in (attended.key, attended.value))
    norm = queries.take(attended.lse)
    if queries.padding is not None:
        # Padding must not contribute.
        norm = norm.masked_fill(queries.padding[..., None], torch.inf)
    part = Attended(q, k, v, merged, norm.transpose(1, 2), attended.scaling)
    gradients = dense_backward(slope, part, call.causal)
    of_query, of_key, of_value = (x.transpose(1, 2) for x in gradients)
    return queries.flat(of_query), keys.flat(of_key), keys.flat(of_value)


# --- rows of one length: torch's flash kernel on a CPU, its memory-efficient one on CUDA ----------

ALIGNED = 32
"""The memory-efficient kernel pads the queries of its log-sum-exp to a multiple of this."""


def dense_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output [n, h, q, d] and log-sum-exp [n, h, q] of `query` [n, h, q, d] over `key` and
    `value` [n, g, k, d]. `causal`: query i sees the keys up to i."""
    if query.is_cuda:
        key, value = _repeated(key, query.shape[1]), _repeated(value, query.shape[1])
        out, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scaling
        )
        return out, lse[..., : query.shape[2]]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, scale=scaling
    )
    return out, lse


def dense_backward(grad: torch.Tensor, attended: Attended, causal: bool) -> Gradients:
    """Return the gradients of query, key and value of `dense_forward`. Its keys may be a part of
    the keys that `out` and `lse` cover."""
    query, key, value, out, lse, scaling = attended
    if not query.is_cuda:
        of_query, of_key, of_value = (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, query, key, value, out, lse, 0.0, causal, scale=scaling
            )
        )
        return of_query, of_key, of_value
    heads, groups = query.shape[1], key.shape[1]
    key, value = _repeated(key, heads), _repeated(value, heads)
    padding = -query.shape[2] % ALIGNED
    lse = F.pad(lse, (0, padding), value=torch.inf).contiguous()
    none = torch.zeros((), dtype=torch.int64, device=query.device)
    state = none, none, 0.0, [True, True, True, False], causal
    of_query, of_key, of_value, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        grad, query, key, value, None, out, lse, *state, scale=scaling
    )
    of_key, of_value = (x.unflatten(1, (groups, -1)).sum(2) for x in (of_key, of_value))
    return of_query, of_key, of_value


def _repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1) if x.shape[1] != heads else x


# --- sequences of any length: torch's varlen flash kernel on CUDA, in half precision --------------


def _varlen_forward(
    call: VarlenCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        call.places.take(query).contiguous(),
        call.key_places.take(key).contiguous(),
        call.key_places.take(value).contiguous(),
        *_bounds(call),
        False,
        scale=scaling,
        **_window(call),
    )
    return out, lse.transpose(0, 1)


def _varlen_backward(call: VarlenCall, grad: torch.Tensor, attended: Attended) -> Gradients:
    query, key, value, out, lse, scaling = attended
    # Without dropout the state of the random generator is not read.
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    of_query, of_key, of_value = torch.ops.aten._flash_attention_backward(
        call.places.take(grad).contiguous(),
        call.places.take(query).contiguous(),
        call.key_places.take(key).contiguous(),
        call.key_places.take(value).contiguous(),
        call.places.take(out).contiguous(),
        call.places.take(lse).transpose(0, 1).contiguous(),
        *_bounds(call),
        state,
        torch.empty(0, device=query.device),
        scale=scaling,
        **_window(call),
    )
    return of_query, of_key, of_value


def _bounds(call: VarlenCall) -> tuple[torch.Tensor, torch.Tensor, int, int, float, bool]:
    """Return the kernel's arguments for both passes: ends of sequences, longest lengths, no
    dropout, and whether the mask is causal."""
    # With one query per sequence and grouped heads, the kernel would swap the two, and the
    # log-sum-exp would have another shape.
    longest = max(call.longest, 2)
    causal = call.causal and call.window is None
    return call.bounds, call.key_bounds, longest, call.longest_keys, 0.0, causal


def _window(call: VarlenCall) -> dict[str, int]:
    """Return how many keys before and after its own place a query sees; −1: all."""
    if not call.causal:
        return {"window_size_left": -1, "window_size_right": -1}
    left = -1 if call.window is None else call.window - 1
    return {"window_size_left": left, "window_size_right": 0}
