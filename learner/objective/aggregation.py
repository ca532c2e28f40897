"""Aggregation of token losses into one number: a weight per sequence, by *global* counts.

The loss of a batch is Σ_tokens weight(sequence) · loss. The counts cover the whole batch over all
ranks and are known before the first backward pass, so the gradient depends neither on the number of
ranks nor on how the batch was cut. Counts are taken before correction masks.
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
    """Trained tokens, sequences and prompts of a batch, over all ranks."""

    tokens: int
    sequences: int
    prompts: int


@dataclass(frozen=True)
class Together:
    """The sequences that `prompt_mean` averages together: a group, or a chunk of a group."""

    tokens: int
    """Tokens in the loss of all of them, on whatever rank they train."""
    first: bool
    """Whether this sequence is the first trained one of them. It counts all of them as one prompt.
    """


def averaged_together(config: Aggregation, number: int, group: Sequence[int]) -> Together:
    """Return the sequences that are averaged with sequence `number` of a group. `group`: tokens in
    the loss of each sequence of the group."""
    start, stop = 0, len(group)
    if isinstance(config, PromptMean) and config.chunk is not None:
        start = number // config.chunk * config.chunk
        stop = start + config.chunk
    first = next((i for i in range(start, min(stop, len(group))) if group[i]), None)
    return Together(sum(group[start:stop]), first == number)


def local_counts(
    lengths: torch.Tensor, first: Sequence[bool], together: Sequence[Together]
) -> Counts:
    """Count this rank's part. `lengths` [n]: tokens in the loss of each conversation; `first` [n]:
    whether the conversation counts its sequence (an agent's session may have several
    conversations); `together` [n]: the sequences that each is averaged with. A conversation without
    tokens in the loss does not count."""
    sequences = sum(
        1 for is_first, length in zip(first, lengths.tolist(), strict=True) if is_first and length
    )
    prompts = sum(is_first and other.first for is_first, other in zip(first, together, strict=True))
    return Counts(int(lengths.sum()), sequences, prompts)


def sequence_weights(
    config: Aggregation,
    lengths: torch.Tensor,
    together: Sequence[Together],
    counts: Counts,
    max_tokens: int,
) -> torch.Tensor:
    """[n] float64 weight of each token of each conversation. `lengths` [n]: tokens in the loss of
    the conversation's whole sequence, so a session weighs the same however often it branches.

    token_mean: DAPO (Yu et al. 2025); sequence_mean: GRPO; prompt_mean over chunks: nanochat;
    constant: Dr. GRPO. Other sequences of a group may be on any rank.
    """
    n = lengths.to(torch.float64)
    match config:
        case TokenMean():
            weights = torch.full_like(n, 1 / max(counts.tokens, 1))
        case SequenceMean():
            weights = 1 / (n.clamp(min=1) * max(counts.sequences, 1))
        case PromptMean():
            totals = n.new_tensor([group.tokens for group in together])
            weights = 1 / (totals.clamp(min=1) * max(counts.prompts, 1))
        case ConstantLength():
            weights = torch.full_like(n, 1 / (max(counts.sequences, 1) * max_tokens))
    return torch.where(lengths > 0, weights, torch.zeros_like(weights))
