"""How token losses become one number: a weight per sequence, by *global* counts.

The loss of a batch is Σ_tokens weight(sequence) · loss. Because the counts are those of the whole
batch over all ranks, and are known before the first backward pass, the gradient does not depend
on the number of ranks or on how the batch was cut. Counts are taken before correction masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.contracts.config.objective.terms import (
    Aggregation,
    ConstantLength,
    PromptMean,
    SequenceMean,
    TokenMean,
)


@dataclass(frozen=True)
class Counts:
    """What a batch holds over all ranks, of that which trains."""

    tokens: int
    sequences: int
    prompts: int


@dataclass(frozen=True)
class Together:
    """What `prompt_mean` averages a sequence together with: its group, or its chunk of it."""

    tokens: int
    """In the loss of all of them, wherever they are trained."""
    first: bool
    """Whether the sequence is the first of them that trains: it counts them as one prompt."""


def averaged_together(config: Aggregation, number: int, group: Sequence[int]) -> Together:
    """Of the sequence `number` of a group whose sequences have `group` tokens in the loss."""
    start, stop = 0, len(group)
    if isinstance(config, PromptMean) and config.chunk is not None:
        start = number // config.chunk * config.chunk
        stop = start + config.chunk
    first = next((i for i in range(start, min(stop, len(group))) if group[i]), None)
    return Together(sum(group[start:stop]), first == number)


def local_counts(
    lengths: torch.Tensor, first: Sequence[bool], together: Sequence[Together]
) -> Counts:
    """Counts of this rank's part. `lengths` [n]: tokens in the loss per conversation; `first` [n]:
    whether it counts its sequence, which has one conversation, or several in an agent's session;
    `together` [n]: what each is averaged with. What has no such tokens does not count."""
    sequences = sum(
        1 for one, length in zip(first, lengths.tolist(), strict=True) if one and length
    )
    prompts = sum(one and other.first for one, other in zip(first, together, strict=True))
    return Counts(int(lengths.sum()), sequences, prompts)


def sequence_weights(
    config: Aggregation,
    lengths: torch.Tensor,
    together: Sequence[Together],
    counts: Counts,
    max_tokens: int,
) -> torch.Tensor:
    """[n] float64 weight of each token of each conversation. `lengths` [n]: tokens in the loss of
    the sequence that it belongs to, so that a session weighs the same however often it branches.

    token_mean: DAPO (Yu et al. 2025); sequence_mean: GRPO; prompt_mean over chunks: nanochat;
    constant: Dr. GRPO. Other sequences of a group may be anywhere.
    """
    n = lengths.to(torch.float64)
    match config:
        case TokenMean():
            weights = torch.full_like(n, 1 / max(counts.tokens, 1))
        case SequenceMean():
            weights = 1 / (n.clamp(min=1) * max(counts.sequences, 1))
        case PromptMean():
            totals = n.new_tensor([one.tokens for one in together])
            weights = 1 / (totals.clamp(min=1) * max(counts.prompts, 1))
        case ConstantLength():
            weights = torch.full_like(n, 1 / (max(counts.sequences, 1) * max_tokens))
    return torch.where(lengths > 0, weights, torch.zeros_like(weights))
