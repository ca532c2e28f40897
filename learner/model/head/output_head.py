"""The output head: log-probabilities and entropy from hidden states, without storing all logits.

The head runs in chunks over rows and vocabulary, forward and backward: a [tokens, vocabulary]
tensor never exists. Entropy comes from the same pass. The result must agree with
`log_softmax(logits / temperature)` of the model's own logits up to rounding. The host never waits
for a value from the device.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from learner.model.head.logit_scale import PLAIN, LogitScale

ROWS = 2048
VOCABULARY = 8192
"""A chunk of logits is at most ROWS × VOCABULARY float32: 64 MiB."""
CPU_ROWS = 512
CPU_VOCABULARY = 2048
"""4 MiB on a CPU, which fit in its caches: a third faster forward, a tenth faster backward."""


class HeadTypes(NamedTuple):
    scale: LogitScale
    kind: torch.dtype
    """Type of the products."""
    wide: torch.dtype
    """Type of logits and sums."""


def head_types(
    hidden: torch.Tensor, temperature: float, compute: torch.dtype | None, scale: LogitScale
) -> HeadTypes:
    """Return how the head computes for `hidden`. See `head_logprobs` for the arguments."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return HeadTypes(scale.at(temperature), compute or hidden.dtype, wide)


def head_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float = 1.0,
    compute: torch.dtype | None = None,
    rows: int | None = None,
    vocabulary: int | None = None,
    scale: LogitScale = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax(scale(hidden·weightᵀ + bias) / temperature) at `targets`, and the entropy.

    hidden [k, d], weight [V, d], bias [V] or None, targets [k] → two [k] tensors, float32 or wider.
    `compute`: type of the products (sums are always float32 or wider). A chunk of logits is [rows,
    vocabulary]; the default suits the device.
    """
    on_cpu = hidden.device.type == "cpu"
    usual = (CPU_ROWS, CPU_VOCABULARY) if on_cpu else (ROWS, VOCABULARY)
    chunk = rows or usual[0], vocabulary or usual[1]
    types = head_types(hidden, temperature, compute, scale)
    logprobs, entropy = _HeadLogprobs.apply(hidden, weight, bias, targets, types, chunk)
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    """Online log-sum-exp over chunks of the vocabulary. The backward pass recomputes each chunk of
    logits instead of keeping it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        types: HeadTypes,
        chunk: tuple[int, int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, vocabulary = chunk
        total = hidden.shape[0]
        chosen = hidden.new_empty(total, dtype=types.wide)
        peak = torch.full_like(chosen, -torch.inf)
        mass, weighted = torch.zeros_like(chosen), torch.zeros_like(chosen)
        for ids, slice_of_weight in _slices(weight, vocabulary, types.kind):
            for r in range(0, total, rows):
                at = slice(r, r + rows)
                target = targets[at]
                logits = _logits(hidden[at].to(types.kind), slice_of_weight, bias, types, ids)
                higher = torch.maximum(peak[at], logits.amax(1))
                shrink = (peak[at] - higher).exp()
                inside = (target >= ids.start) & (target < ids.stop)
                column = (target - ids.start).clamp(0, logits.shape[1] - 1)[:, None]
                at_target = logits.gather(1, column).squeeze(1)
                chosen[at] = torch.where(inside, at_target, chosen[at])
                exponentials = (logits - higher[:, None]).exp_()
                mass[at] = mass[at] * shrink + exponentials.sum(1)
                weighted[at] = weighted[at] * shrink + exponentials.mul_(logits).sum(1)
                peak[at] = higher
        normaliser = peak + mass.log()
        entropy = normaliser - weighted / mass
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.options = types, chunk
        # An unused output has gradient None, and costs nothing.
        ctx.set_materialize_grads(False)
        return chosen - normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        types, (rows, vocabulary) = ctx.options
        (scale, kind, wide), (given, of_entropy) = types, grads
        grad = torch.zeros_like(normaliser) if given is None else given * scale.multiplier
        by_entropy = None if of_entropy is None else of_entropy * scale.multiplier
        sums = HeadGradients(hidden, weight, bias, wide, ctx.needs_input_grad)
        for ids, slice_of_weight in _slices(weight, vocabulary, kind):
            for r in range(0, hidden.shape[0], rows):
                at = slice(r, r + rows)
                part, target = hidden[at].to(kind), targets[at]
                logits = _logits(part, slice_of_weight, bias, types, ids)
                bend = scale.bend(logits)
                # d logp / d logits = onehot − softmax
                every = logits.sub_(normaliser[at, None])
                spread = None
                if by_entropy is not None:
                    # d entropy / d logits = −softmax · (log softmax + entropy)
                    spread = (every + entropy[at, None]).mul_(every.exp()).neg_()
                    spread.mul_(by_entropy[at, None])
                slope = every.exp_().neg_()
                # Masked, so that the device is not asked which targets are in this chunk.
                inside = (target >= ids.start) & (target < ids.stop)
                column = (target - ids.start).clamp(0, slope.shape[1] - 1)[:, None]
                slope.scatter_add_(1, column, inside.to(wide)[:, None])
                slope.mul_(grad[at, None])
                if spread is not None:
                    slope += spread
                if bend is not None:
                    slope *= bend
                if sums.bias is not None:
                    sums.bias[ids] += slope.sum(0)
                slope = slope.to(kind)
                sums.hidden[at] += slope @ slice_of_weight
                if sums.weight is not None:
                    sums.weight[ids] += slope.T @ part
        return (*sums.returned(), None, None, None)


class HeadGradients:
    """Sums of the gradients of hidden states, and of the head's weight and bias if they are
    trained: a frozen head (LoRA) costs neither the product nor the memory."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        wide: torch.dtype,
        needed: Sequence[bool],
    ) -> None:
        """Zeros of type `wide`. `needed`: `ctx.needs_input_grad` of a function whose first three
        inputs are hidden, weight and bias."""
        self._given = (hidden, weight, bias)
        self.hidden = torch.zeros_like(hidden, dtype=wide)
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        trains_bias = bias is not None and needed[2]
        self.bias = weight.new_zeros(weight.shape[0], dtype=wide) if trains_bias else None

    def returned(self) -> list[torch.Tensor | None]:
        """Return the three gradients in the types of their tensors. None: not trained."""
        sums = (self.hidden, self.weight, self.bias)
        return [
            None if total is None or tensor is None else total.to(tensor.dtype)
            for total, tensor in zip(sums, self._given, strict=True)
        ]


def _slices(
    weight: torch.Tensor, vocabulary: int, kind: torch.dtype
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the ids of each chunk of the vocabulary, and their weights in the type of the
    products: cast once, for all rows."""
    for start in range(0, weight.shape[0], vocabulary):
        ids = slice(start, start + vocabulary)
        yield ids, weight[ids].to(kind)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    types: HeadTypes,
    ids: slice,
) -> torch.Tensor:
    """Return the logits of `ids`, whose weights are `weight`."""
    logits = (hidden @ weight.T).to(types.wide)
    if bias is not None:
        logits += bias[ids]
    return types.scale.apply_(logits)
