"""Group samples into families that compute a common prefix once, and cut families into
micro-batches.

Needs only torch and transformers: the learner's benchmark makes the same cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.batch.cost import TOKENS, SequenceCost
from learner.batch.packing import micro_batches
from learner.batch.prefixes import Sharing, common_prefixes
from learner.model.attention.packed import NAME
from learner.model.passes.mfu import sequence_cost

if TYPE_CHECKING:  # the learner's benchmark has samples of its own
    from learner.batch.samples import TrainingSample
    from learner.batch.sft_rows import Example

    Sample = TrainingSample | Example

# `Sharing.merge` and `Sharing.least`. Merging reads and writes about ten float32 numbers for each
# number of a query, at 5 GB/s and 50 GFLOP/s of one core, or 4 TB/s and 400 TFLOP/s of an H200.
CPU_MERGE, CPU_LEAST = 400, 32
CUDA_MERGE, CUDA_LEAST = 4000, 512


@dataclass(frozen=True)
class Family:
    """Samples that share prefixes, or a single sample."""

    members: list[int]
    """Indices of its samples, in the order of `prefixes`."""
    shared: list[int]
    """Tokens that each sample shares with its predecessor."""
    tokens: int
    """Tokens that the family computes."""
    cost: int
    """FLOPs of a forward pass."""


def families_of(
    samples: Sequence["Sample"], budget: int, sharing: Sharing | None, cost: SequenceCost
) -> list[Family]:
    """Group samples into families that share prefixes if sharing pays, of at most `budget`
    tokens."""
    prefixes = common_prefixes([s.tokens for s in samples], [s.experts for s in samples], sharing)
    families = []
    for family in prefixes.families(budget):
        members, shared = [prefixes.order[i] for i in family], prefixes.within(family)
        tokens = flops = 0
        for i, start in zip(members, shared, strict=True):
            end, predicted = len(samples[i].tokens), int(samples[i].loss_mask.sum())
            tokens += end - start
            flops += cost.between(start, end, predicted)
        families.append(Family(members, shared, tokens, flops))
    return families


def units_of(
    samples: Sequence["Sample"], size: int, sharing: Sharing | None, cost: SequenceCost
) -> list[Family]:
    """Like `families_of`, but each `size` consecutive samples are one family of any length, which
    is never split."""
    units = []
    for start in range(0, len(samples), size):
        part = samples[start : start + size]
        inner = families_of(part, sum(len(sample.tokens) for sample in part), sharing, cost)
        units.append(
            Family(
                [start + i for family in inner for i in family.members],
                [n for family in inner for n in family.shared],
                sum(family.tokens for family in inner),
                sum(family.cost for family in inner),
            )
        )
    return units


def sizes_of(families: Sequence[Family]) -> list[int]:
    """Tokens that each family computes."""
    return [family.tokens for family in families]


def cut(families: Sequence[Family], budget: int, passes: int | None) -> list[list[Family]]:
    """Cut into micro-batches of whole families, exactly `passes` of them if given."""
    costs = [family.cost for family in families]
    chosen = micro_batches(sizes_of(families), budget, passes, costs)
    return [[families[i] for i in indices] for indices in chosen]


def language_model(model: nn.Module) -> PreTrainedModel | None:
    """Return the transformers model in a policy or critic, or None if it has another model."""
    inner = getattr(unwrapped(model), "model", None)
    return inner if isinstance(inner, PreTrainedModel) else None


def cost_of(model: nn.Module) -> SequenceCost:
    inner = language_model(model)
    return TOKENS if inner is None else sequence_cost(inner)


def sharing_of(model: nn.Module) -> Sharing | None:
    """Return when samples share prefixes in passes of `model`, or None if its attention cannot
    share prefixes."""
    inner = language_model(model)
    if inner is None or inner.config._attn_implementation != NAME:
        return None
    kind = device_of(model).type
    return Sharing(
        sequence_cost(inner),
        CPU_MERGE if kind == "cpu" else CUDA_MERGE,
        CPU_LEAST if kind == "cpu" else CUDA_LEAST,
    )


def sharing_in_words(model: nn.Module, share: float) -> str:
    """Describe for the user whether samples share prefixes in passes of `model`, and why. `share`:
    share of their tokens that sharing saved."""
    if share > 0:
        return f"on: {share:.0%} of the samples' tokens were computed once for several samples"
    if sharing_of(model) is None:
        return "off: the model's own attention has no packed rows with shared tokens"
    return (
        "off: merging the attention to a prompt with that to its answers would cost more than it "
        "saves at these lengths"
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return `model` without DDP, for passes without gradient."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
