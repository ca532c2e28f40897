"""Context parallelism: several ranks share the tokens of one packed row.

Each rank computes a stretch of the row; all stretches are about equally long. For attention the
ranks exchange stretches for heads, and back (Ulysses, Jacobs et al. 2023, arXiv:2309.14509): each
rank attends over the whole row with its share of the heads, using the kernels of a single rank.
Therefore windows and shared prefixes work unchanged, gradients are exact, and causal attention is
balanced over ranks. Afterwards the results at each rank's tokens are joined on all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from learner.model.attention.kernels import Call, attend
from learner.model.attention.row_calls import sent

if TYPE_CHECKING:  # bench.learner.one_pass also runs with only torch and transformers
    from learner.distributed import Context


@dataclass(frozen=True)
class RowPart:
    """The stretch of a row that this rank computes."""

    context: "Context"
    sizes: tuple[int, ...]
    """Tokens of each rank's stretch."""
    predictors: torch.Tensor
    """[m] places within the stretch of the row's predictors that are in it."""
    chosen: torch.Tensor
    """[m] indices of these predictors among the row's predictors."""

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.context.rank])

    @property
    def size(self) -> int:
        return self.sizes[self.context.rank]

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """[t, …] this rank's stretch of `x` [T, …]."""
        return x.narrow(0, self.start, self.size)

    def joined(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """[k] results of all ranks at the row's `count` predictors. `x` [m]: this rank's
        results."""
        return self.summed(x.new_zeros(count).index_copy(0, self.chosen, x))

    def here(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of the row's `places` [p] are in this stretch, and their places in it [p].
        The place of a token outside the stretch is arbitrary."""
        places_here = places - self.start
        return (places_here >= 0) & (places_here < self.size), places_here.clamp(
            0, max(self.size - 1, 0)
        )

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `x`, with the gradient of this rank's `x`. All ranks compute
        the same loss from the sum, so each already has the whole gradient of the sum."""
        total: torch.Tensor = _Summed.apply(x, self.context)
        return total


def row_part(context: "Context", tokens: int, predictors: torch.Tensor, device: Any) -> RowPart:
    """Return this rank's stretch of a row of `tokens` tokens with `predictors` [k] (on the
    host)."""
    bounds = [tokens * i // context.size for i in range(context.size + 1)]
    start, end = bounds[context.rank : context.rank + 2]
    chosen = ((predictors >= start) & (predictors < end)).nonzero().squeeze(1)
    sizes = tuple(b - a for a, b in pairwise(bounds))
    return RowPart(context, sizes, sent(predictors[chosen] - start, device), sent(chosen, device))


def attend_together(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    calls: Sequence[Call],
    scaling: float | None,
    part: RowPart,
) -> torch.Tensor:
    """[t, h, e] attention of the whole row (`attend`) at this rank's stretch: `query` [t, h, d],
    `key` [t, g, d], `value` [t, g, e]."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    ranks, size = part.context.size, value.shape[-1]
    width = max(query.shape[-1], size)
    heads = key_heads(query.shape[1], key.shape[1], ranks)
    if heads != list(range(key.shape[1])):
        index = sent(torch.tensor(heads), key.device)
        key, value = key.index_select(1, index), value.index_select(1, index)
    # Each rank gets its heads of query, key and value in one message.
    by_rank = [
        F.pad(x, (0, width - x.shape[-1])).unflatten(1, (ranks, -1)) for x in (query, key, value)
    ]
    sizes = [x.shape[2] for x in by_rank]
    whole: torch.Tensor = _ToHeads.apply(torch.cat(by_rank, 2), part)
    query, key, value = whole.split(sizes, 1)
    out = attend(query, key, value, calls, scaling)
    stretch: torch.Tensor = _ToTokens.apply(out, part)
    return stretch.flatten(1, 2)[..., :size]


def key_heads(heads: int, groups: int, ranks: int) -> list[int]:
    """Return the key heads of all ranks, rank by rank, the same number for each. Query head i of
    `heads` reads key head i·`groups`//`heads`, and rank r has the r-th part of the query heads."""
    every = [i * groups // heads for i in range(heads)]
    share = heads // ranks
    parts = [sorted(set(every[i : i + share])) for i in range(0, heads, share)]
    even = all(
        every[r * share : (r + 1) * share] == [g for g in part for _ in range(share // len(part))]
        for r, part in enumerate(parts)
    )
    if even and len({len(part) for part in parts}) == 1:
        return [g for part in parts for g in part]
    return every


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, context: "Context") -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=context.group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _ToHeads(torch.autograd.Function):
    """[t, n, h, d] this stretch's heads, by rank → [T, h, d] this rank's heads of the whole row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, part: RowPart) -> torch.Tensor:
        ctx.part = part
        return _to_heads(x, part)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _to_tokens(grads[0], ctx.part), None


class _ToTokens(torch.autograd.Function):
    """[T, h, d] this rank's heads of the whole row → [t, n, h, d] this stretch's heads, by rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, part: RowPart) -> torch.Tensor:
        ctx.part = part
        return _to_tokens(x, part)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _to_heads(grads[0], ctx.part), None


def _to_heads(x: torch.Tensor, part: RowPart) -> torch.Tensor:
    shape = x[:, 0].shape[1:]
    outgoing = x.transpose(0, 1).contiguous().view(-1, *shape)
    return _exchanged(outgoing, [part.size] * part.context.size, list(part.sizes), part.context)


def _to_tokens(x: torch.Tensor, part: RowPart) -> torch.Tensor:
    ranks = part.context.size
    rows = _exchanged(x.contiguous(), list(part.sizes), [part.size] * ranks, part.context)
    return rows.unflatten(0, (ranks, part.size)).transpose(0, 1)


def _exchanged(
    x: torch.Tensor, given: list[int], taken: list[int], context: "Context"
) -> torch.Tensor:
    """[Σ taken, …] rows that the other ranks send to this rank. `x` [Σ given, …]: the rows that
    this rank sends, rank by rank."""
    received = x.new_empty(sum(taken), *x.shape[1:])
    dist.all_to_all_single(received, x, taken, given, group=context.group)
    return received
