"""A policy small enough to write its objective down: it samples each token from one
distribution."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from learner.batch.samples import TrainingSample, group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.batch.token_advantages import set_returns
from learner.distributed import Ranks
from learner.metrics.loss_metrics import Tally
from learner.model.passes.logprobs import PackedRow
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective
from learner.objective.value_loss import Scale
from learner.step import accumulate_gradients
from services.contracts.groups.trajectory import TrajectoryGroup

ALONE = Ranks(0, 1, torch.device("cpu"))
VOCABULARY = 32


class Unigrams(nn.Module):
    """log softmax(logits / temperature) of every token, independent of earlier tokens. float64."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)
        self.logits = nn.Parameter(drawn)

    def forward(self, row: PackedRow, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [k] and entropies [k], as `TokenLogprobs` gives them."""
        every = (self.logits / temperature).log_softmax(0)
        entropy = -(every.exp() * every).sum()
        return every[row.targets], entropy.expand(len(row.targets))


def near(logprobs: torch.Tensor, seed: int, spread: float = 0.3) -> torch.Tensor:
    """`logprobs` [k] with noise: log-probabilities of another policy."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(logprobs), generator=generator, dtype=torch.float64)
    return logprobs + spread * noise


def prepared(
    groups: Sequence[TrajectoryGroup], objective: Objective, temperature: float = 1.0
) -> list[TrainingSample]:
    """The groups' samples, with sampler, proximal and reference log-probabilities near
    `Unigrams()`, and with their advantages."""
    every = (Unigrams().logits.detach() / temperature).log_softmax(0)
    algorithm = objective.algorithm
    samples: list[TrainingSample] = []
    for index, group in enumerate(groups):
        total = int(group.lengths.sum())
        own = every[torch.from_numpy(group.tokens)]
        group.logprobs = near(own, 10 + index).numpy().astype(np.float32)
        assert len(group.logprobs) == total
        samples += group_samples(
            group, algorithm, objective.max_tokens, token_staleness(group, Ancestry((("a", 0),)), 3)
        )
    for number, sample in enumerate(samples):
        own = every[sample.tokens[sample.loss_mask]]
        if algorithm.proximal.type in ("recompute", "lagged"):
            sample.proximal_logprobs = near(own, 100 + number)
        if algorithm.kl.type != "none":
            sample.reference_logprobs = near(own, 200 + number)
        if algorithm.critic is not None:
            sample.values = near(torch.zeros(len(own) + 1), 300 + number, 1.0)
    set_returns(
        [sample for sample in samples if sample.trains], objective, ALONE.sum_named, Scale()
    )
    return samples


def trained(
    samples: Sequence[TrainingSample], objective: Objective, budget: int = 30
) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient [VOCABULARY] in the logits, by the learner's step."""
    policy, tally = Unigrams(), Tally()
    accumulate_gradients(policy, list(samples), objective, MicroBatches(ALONE, budget), tally)
    assert policy.logits.grad is not None
    return tally.metrics(ALONE)["train/loss"], policy.logits.grad
