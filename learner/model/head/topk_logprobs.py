"""Log-probabilities over the tokens that `top_k` and `top_p` left to the sampler, token by token.

Only their logits are computed, in chunks of rows, forward and backward. The result
must agree up to rounding with `log_softmax` of all logits / temperature after the other logits were
set to −∞.
"""

from typing import Any

import torch

from learner.model.head.logit_scale import PLAIN, LogitScale
from learner.model.head.output_head import HeadGradients, HeadTypes, head_types

ELEMENTS = 1 << 24
"""Numbers in a chunk of output embeddings: at most 64 MiB of float32."""


def padded(tables: list[torch.Tensor]) -> torch.Tensor:
    """[k, w] concatenation of tables of ids ([k_i, w_i] each), padded with −1."""
    width = max(table.shape[1] for table in tables)
    return torch.cat(
        [torch.nn.functional.pad(t, (0, width - t.shape[1]), value=-1) for t in tables]
    )


def topk_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    sampling_mask: torch.Tensor,
    temperature: float = 1.0,
    compute: torch.dtype | None = None,
    elements: int = ELEMENTS,
    scale: LogitScale = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `output_head.head_logprobs`, with the softmax over the ids in `sampling_mask` [k, w],
    padded with −1. Each target must be an id of its row."""
    types = head_types(hidden, temperature, compute, scale)
    rows = max(1, elements // max(1, sampling_mask.shape[1] * hidden.shape[1]))
    logprobs, entropy = _TopKLogprobs.apply(
        hidden, weight, bias, targets, sampling_mask, types, rows
    )
    return logprobs, entropy


class _TopKLogprobs(torch.autograd.Function):
    """The backward pass recomputes each chunk of logits instead of keeping it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        sampling_mask: torch.Tensor,
        types: HeadTypes,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = hidden.new_empty(hidden.shape[0], dtype=types.wide)
        entropy = torch.empty_like(logprobs)
        for r in range(0, hidden.shape[0], rows):
            part = slice(r, r + rows)
            logits, _ = _logits(hidden[part], weight, bias, types, sampling_mask[part])
            every = logits.log_softmax(1)
            place = (sampling_mask[part] == targets[part, None]).long().argmax(1, keepdim=True)
            logprobs[part] = every.gather(1, place).squeeze(1)
            entropy[part] = -(every.exp() * every.masked_fill(sampling_mask[part] < 0, 0)).sum(1)
        ctx.save_for_backward(hidden, weight, bias, targets, sampling_mask, entropy)
        ctx.options = types, rows
        # An unused output has gradient None, and costs nothing.
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, sampling_mask, entropy = ctx.saved_tensors
        types, rows = ctx.options
        (scale, kind, wide), (of_logprobs, of_entropy) = types, grads
        sums = HeadGradients(hidden, weight, bias, wide, ctx.needs_input_grad)
        for r in range(0, hidden.shape[0], rows):
            part = slice(r, r + rows)
            logits, chosen = _logits(hidden[part], weight, bias, types, sampling_mask[part])
            every = logits.log_softmax(1)
            chances = every.exp()
            slope = torch.zeros_like(chances)
            if of_logprobs is not None:
                # d logp / d logits = onehot − softmax
                hit = (sampling_mask[part] == targets[part, None]).to(wide)
                slope += (hit - chances) * of_logprobs[part, None]
            if of_entropy is not None:
                # d entropy / d logits = −softmax · (log softmax + entropy)
                finite = every.masked_fill(sampling_mask[part] < 0, 0)
                slope -= chances * (finite + entropy[part, None]) * of_entropy[part, None]
            slope *= scale.multiplier
            if (bend := scale.bend(logits)) is not None:
                slope *= bend.masked_fill(sampling_mask[part] < 0, 0)
            ids = sampling_mask[part].clamp(min=0).flatten().long()
            if sums.bias is not None:
                sums.bias.index_add_(0, ids, slope.flatten())
            slope = slope.to(kind)
            sums.hidden[part] = torch.bmm(slope[:, None], chosen).squeeze(1)
            if sums.weight is not None:
                outer = slope[:, :, None] * hidden[part, None].to(kind)
                sums.weight.index_add_(0, ids, outer.flatten(0, 1).to(wide))
        return (*sums.returned(), *(None,) * 4)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    types: HeadTypes,
    sampling_mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [rows, w] logits of the ids in `sampling_mask` [rows, w], −∞ for padding, and their
    output embeddings [rows, w, d]."""
    ids = sampling_mask.clamp(min=0)
    chosen = weight[ids].to(types.kind)
    logits = torch.bmm(chosen, hidden[:, :, None].to(types.kind)).squeeze(2).to(types.wide)
    if bias is not None:
        logits += bias[ids]
    return types.scale.apply_(logits).masked_fill_(sampling_mask < 0, -torch.inf), chosen
