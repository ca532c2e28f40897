"""How token losses become one number: a weight per sequence, by *global* counts.

The loss of a batch is Σ_tokens weight(sequence) · loss. Because the counts are those of the whole
batch over all ranks, and are known before the first backward pass, the gradient does not depend
on the number of ranks or on how the batch was cut. Counts are taken before correction masks.
"""

from dataclasses import dataclass

import torch

from services.contracts.config.terms import (
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


def averaged_together(
    config: Aggregation, group: torch.Tensor, number: torch.Tensor
) -> torch.Tensor:
    """[n] which sequences `prompt_mean` averages together: those of one `group` [n], or of one
    chunk of it, by their `number` [n] within the group."""
    if isinstance(config, PromptMean) and config.chunk is not None:
        chunk = number // config.chunk
        return group * (_top(chunk)) + chunk
    return group


def local_counts(lengths: torch.Tensor, prompt: torch.Tensor) -> Counts:
    """Counts of this rank's part. `lengths` [n]: tokens in the loss per sequence; `prompt` [n]:
    which group (or chunk) a sequence belongs to. Sequences and prompts without such tokens do not
    count."""
    trains = lengths > 0
    return Counts(int(lengths.sum()), int(trains.sum()), len(set(prompt[trains].tolist())))


def sequence_weights(
    config: Aggregation,
    lengths: torch.Tensor,
    prompt: torch.Tensor,
    counts: Counts,
    max_tokens: int,
) -> torch.Tensor:
    """[n] float64 weight of each token of each sequence.

    token_mean: DAPO (Yu et al. 2025); sequence_mean: GRPO; prompt_mean over chunks: nanochat;
    constant: Dr. GRPO. A group's sequences must all be here (groups are never split over ranks).
    """
    n = lengths.to(torch.float64)
    match config:
        case TokenMean():
            weights = torch.full_like(n, 1 / max(counts.tokens, 1))
        case SequenceMean():
            weights = 1 / (n.clamp(min=1) * max(counts.sequences, 1))
        case PromptMean():
            totals = n.new_zeros(_top(prompt))
            totals.index_add_(0, prompt, n)
            weights = 1 / (totals[prompt].clamp(min=1) * max(counts.prompts, 1))
        case ConstantLength():
            weights = torch.full_like(n, 1 / (max(counts.sequences, 1) * max_tokens))
    return torch.where(lengths > 0, weights, torch.zeros_like(weights))


def _top(prompt: torch.Tensor) -> int:
    return int(prompt.max()) + 1 if prompt.numel() else 0
