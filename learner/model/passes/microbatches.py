"""Passes of a model over a batch in packed micro-batches. Every rank makes the same number of
passes.

The cut must never change the gradient: sums are normalised by counts over all ranks that are known
before the first backward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.batch.packing import micro_batches_needed
from learner.batch.samples import ROUTER_CHOICE, TrainingSample
from learner.batch.sft_rows import Example
from learner.distributed import Context, Ranks
from learner.errors import UnusableModel
from learner.model.attention.packed import why_not_shared
from learner.model.head.topk_logprobs import padded
from learner.model.passes.families import (
    Family,
    cost_of,
    cut,
    device_of,
    families_of,
    sharing_of,
    sizes_of,
    units_of,
)
from learner.model.passes.logprobs import PackedRow, packed_row
from learner.model.placement.parallel import is_sharded
from learner.optim.optimizers import Optimizers

# On a CPU, activations of more tokens than this do not fit in the caches: micro-batches of 1,000 to
# 4,000 tokens are the fastest for models of 1 M to 100 M parameters. 16,000 take half as long
# again.
CPU_TOKENS = 4096
S = TypeVar("S", TrainingSample, Example)


def backward_rows(
    model: nn.Module,
    samples: Sequence[S],
    budget: int,
    ranks: Ranks,
    optimizers: Optimizers | None = None,
    together: int = 1,
) -> Iterator[tuple[list[int], PackedRow]]:
    """Yield micro-batches of `samples`: indices of the samples, and their row. Each is for one
    forward and one backward pass of `model`. The last backward pass sums gradients over ranks, and
    is announced to `optimizers`. Each `together` consecutive samples are in one micro-batch.

    A rank with fewer micro-batches than the others gets rows without samples, for a loss of 0:
    DDP's all-reduce needs the backward pass.
    """
    device = device_of(model)
    budget = micro_batch_tokens(budget, device) * row_ranks(ranks)
    families = _families(model, samples, budget, together)
    passes = int(ranks.max([max(micro_batches_needed(sizes_of(families), budget), 1)])[0])
    for taken, chosen in enumerate(cut(families, budget, passes), 1):
        if optimizers and taken == passes:
            optimizers.last_pass()
        with synchronised(model, taken == passes):
            row = row_of(chosen, samples, device, ranks.context)
            yield [i for family in chosen for i in family.members], row


def forward_rows(
    model: nn.Module, samples: Sequence[S], budget: int, ranks: Ranks
) -> Iterator[tuple[list[S], PackedRow]]:
    """Yield micro-batches of `samples` and their rows, for forward passes of `model`. Without
    samples there are no micro-batches, except for a sharded `model`: then every rank gets equally
    many, some of them without samples."""
    device = device_of(model)
    budget = micro_batch_tokens(budget, device) * row_ranks(ranks)
    families = _families(model, samples, budget)
    passes = None
    if is_sharded(model):
        passes = int(ranks.max([micro_batches_needed(sizes_of(families), budget)])[0])
    for chosen in cut(families, budget, passes):
        row = row_of(chosen, samples, device, ranks.context)
        yield [samples[i] for family in chosen for i in family.members], row


def micro_batch_tokens(budget: int, device: torch.device) -> int:
    """Return the configured limit, or a lower limit that is faster."""
    return min(budget, CPU_TOKENS) if device.type == "cpu" else budget


def row_ranks(ranks: Ranks) -> int:
    """Return the number of ranks that share a row. Each rank may have `budget` tokens."""
    return ranks.context.size if ranks.context else 1


def check_sharing(model: PreTrainedModel, ranks: Ranks) -> None:
    """Raise UnusableModel if ranks should share rows of `model` but cannot."""
    if ranks.context and (why := why_not_shared(model, ranks.context.size)):
        raise UnusableModel(f"training.context_parallel {ranks.context.size}: {why}")


def synchronised(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Have DDP sum gradients over ranks only in the `last` backward pass of an optimizer step. A
    sharded model sums them in each pass, or every rank would hold the gradients of the whole
    model."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def _families(
    model: nn.Module, samples: Sequence[S], budget: int, together: int = 1
) -> list[Family]:
    tokens = [sample.tokens for sample in samples]
    masks = [sample.loss_mask for sample in samples]
    experts = [sample.experts for sample in samples]
    sharing, cost = sharing_of(model), cost_of(model)
    if together > 1:
        return units_of(tokens, masks, experts, together, sharing, cost)
    return families_of(tokens, masks, experts, budget, sharing, cost)


def row_of(
    families: Sequence[Family],
    samples: Sequence[S],
    device: torch.device,
    context: Context | None = None,
) -> PackedRow:
    """Return the row of `families` of `samples`, shared by the ranks of `context`. Without
    families, the row predicts one dummy token, because every rank makes the same number of
    passes."""
    if not families:
        return packed_row(
            [torch.zeros(2, dtype=torch.int64)],
            [torch.tensor([False, True])],
            device,
            context=context,
        )
    chosen = [samples[i] for family in families for i in family.members]
    sampling_mask = [s.sampling_mask for s in chosen if s.sampling_mask is not None]
    return packed_row(
        [s.tokens for s in chosen],
        [s.loss_mask for s in chosen],
        device,
        padded(sampling_mask) if sampling_mask else None,
        _experts(chosen),
        [n for family in families for n in family.shared],
        context,
    )


def _experts(samples: Sequence[S]) -> list[torch.Tensor] | None:
    recorded = [s.experts for s in samples if s.experts is not None]
    if not recorded:
        return None
    shape: torch.Size = recorded[0].shape[1:]
    return [
        recorded[0].new_full((len(s.tokens), *shape), ROUTER_CHOICE)
        if s.experts is None
        else s.experts
        for s in samples
    ]
