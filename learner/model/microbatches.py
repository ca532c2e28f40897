"""Passes of a model over a batch, in packed micro-batches, by every rank the same number of times.

The cut must never change the gradient: what is summed here is normalised by counts over all ranks
that are known before the first backward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.batch.cost import TOKENS, SequenceCost
from learner.batch.packing import micro_batches, micro_batches_needed
from learner.batch.prefixes import Sharing, common_prefixes
from learner.batch.samples import OWN, Sample
from learner.batch.sft_rows import Example
from learner.distributed import Ranks
from learner.model.logprobs import PackedRow, packed_row
from learner.model.mfu import sequence_cost
from learner.model.packed_attention import NAME
from learner.model.parallel import is_sharded
from learner.model.topk_logprobs import padded
from learner.optim.optimizers import Optimizers

# On a CPU, activations of more tokens than this fall out of the caches: micro-batches of 1,000 to
# 4,000 tokens are the fastest for models of 1 M to 100 M parameters, 16,000 half again as slow.
CPU_TOKENS = 4096
# `Sharing.merge` and `Sharing.least`. Merging reads and writes some ten numbers of float32 for each
# number of a query, at 5 GB/s and 50 GFLOP/s of one core, and 4 TB/s and 400 TFLOP/s of an H200.
CPU_MERGE, CPU_LEAST = 400, 32
CUDA_MERGE, CUDA_LEAST = 4000, 512

S = TypeVar("S", Sample, Example)


def backward_rows(
    model: nn.Module,
    samples: Sequence[S],
    budget: int,
    ranks: Ranks,
    optimizers: Optimizers | None = None,
) -> Iterator[tuple[list[int], PackedRow]]:
    """Micro-batches of `samples`: which of them, and their row. Each is for one forward and one
    backward pass of `model`; the last one sums gradients over ranks, and is announced to
    `optimizers`.

    A rank with fewer micro-batches than the others gets rows without samples, for a loss of 0:
    DDP's all-reduce needs the backward pass.
    """
    device = device_of(model)
    budget = micro_batch_tokens(budget, device)
    families = families_of(model, samples, budget)
    passes = int(ranks.max([max(micro_batches_needed(sizes_of(families), budget), 1)])[0])
    for taken, chosen in enumerate(cut(families, budget, passes), 1):
        if optimizers and taken == passes:
            optimizers.last_pass()
        with synchronised(model, taken == passes):
            yield [i for one in chosen for i in one.members], row_of(chosen, samples, device)


def forward_rows(
    model: nn.Module, samples: Sequence[S], budget: int, ranks: Ranks
) -> Iterator[tuple[list[S], PackedRow]]:
    """Micro-batches of `samples` and their rows, for forward passes of `model`: without any there
    is none. Where `model` is sharded, every rank makes as many, some of them without samples."""
    device = device_of(model)
    budget = micro_batch_tokens(budget, device)
    families = families_of(model, samples, budget)
    passes = None
    if is_sharded(model):
        passes = int(ranks.max([micro_batches_needed(sizes_of(families), budget)])[0])
    for chosen in cut(families, budget, passes):
        row = row_of(chosen, samples, device)
        yield [samples[i] for one in chosen for i in one.members], row


@dataclass(frozen=True)
class Family:
    """Samples that share prefixes, or one that shares none."""

    members: list[int]
    """Their indices, in the order of `prefixes`."""
    shared: list[int]
    """Tokens that each shares with the one before it."""
    tokens: int
    """That they compute."""
    cost: int
    """FLOPs of a forward pass."""


def families_of(model: nn.Module, samples: Sequence[S], budget: int) -> list[Family]:
    """`samples` by what they share where sharing pays for `model`, in parts of at most `budget`
    tokens."""
    sharing, cost = sharing_of(model), cost_of(model)
    prefixes = common_prefixes(
        [sample.tokens for sample in samples], [sample.experts for sample in samples], sharing
    )
    found = []
    for family in prefixes.families(budget):
        members, shared = [prefixes.order[i] for i in family], prefixes.within(family)
        tokens = flops = 0
        for i, start in zip(members, shared, strict=True):
            end, predicted = len(samples[i].tokens), int(samples[i].loss_mask.sum())
            tokens += end - start
            flops += cost.between(start, end, predicted)
        found.append(Family(members, shared, tokens, flops))
    return found


def sizes_of(families: Sequence[Family]) -> list[int]:
    """Tokens that each computes."""
    return [family.tokens for family in families]


def cut(families: Sequence[Family], budget: int, passes: int | None) -> list[list[Family]]:
    """Micro-batches of whole families; with `passes` so many."""
    costs = [family.cost for family in families]
    chosen = micro_batches(sizes_of(families), budget, passes, costs)
    return [[families[i] for i in indices] for indices in chosen]


def language_model(model: nn.Module) -> PreTrainedModel | None:
    """The model of transformers in a policy or critic; None where it has another."""
    found = getattr(unwrapped(model), "model", None)
    return found if isinstance(found, PreTrainedModel) else None


def cost_of(model: nn.Module) -> SequenceCost:
    """What sequences cost `model`."""
    inner = language_model(model)
    return TOKENS if inner is None else sequence_cost(inner)


def sharing_of(model: nn.Module) -> Sharing | None:
    """When samples share prefixes in passes of `model`; None: never, since it does not use packed
    attention."""
    inner = language_model(model)
    if inner is None or inner.config._attn_implementation != NAME:
        return None
    kind = device_of(model).type
    return Sharing(
        sequence_cost(inner),
        CPU_MERGE if kind == "cpu" else CUDA_MERGE,
        CPU_LEAST if kind == "cpu" else CUDA_LEAST,
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """`model` without DDP, for passes that have no gradient."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def device_of(model: nn.Module) -> torch.device:
    """Where `model` computes."""
    return next(model.parameters()).device


def micro_batch_tokens(budget: int, device: torch.device) -> int:
    """The configured limit, or less where less is faster."""
    return min(budget, CPU_TOKENS) if device.type == "cpu" else budget


def synchronised(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """DDP sums gradients over ranks in the `last` backward pass of an optimizer step only. A
    sharded model sums them in each: else every rank would hold those of the whole model."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def sharing_in_words(model: nn.Module, share: float) -> str:
    """Whether samples share prefixes in passes of `model`, and why; `share` of their tokens were
    not computed."""
    if share > 0:
        return f"on: {share:.0%} of the samples' tokens were computed once for several samples"
    if sharing_of(model) is None:
        return "off: the model's own attention has no packed rows with shared tokens"
    return (
        "off: merging the attention to a prompt with that to its answers would cost more than it "
        "saves at these lengths"
    )


def row_of(families: Sequence[Family], samples: Sequence[S], device: torch.device) -> PackedRow:
    """The row of these families of `samples`; without any, one that predicts a token for nothing,
    since every rank makes the same passes."""
    if not families:
        return packed_row(
            [torch.zeros(2, dtype=torch.int64)], [torch.tensor([False, True])], device
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
    )


def _experts(samples: Sequence[S]) -> list[torch.Tensor] | None:
    recorded = [s.experts for s in samples if s.experts is not None]
    if not recorded:
        return None
    shape: torch.Size = recorded[0].shape[1:]
    return [
        recorded[0].new_full((len(s.tokens), *shape), OWN) if s.experts is None else s.experts
        for s in samples
    ]
