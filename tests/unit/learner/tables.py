"""A critic small enough to write its loss down: its value depends on one token alone."""

from typing import Any

import torch
from torch import nn

from learner.model.passes.logprobs import PackedRow
from learner.model.value_model import TrainedCritic
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import tiny_model
from tests.unit.learner.unigrams import VOCABULARY


class Table(nn.Module):
    """A value for each token, independent of earlier tokens. float64."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)
        self.said = nn.Parameter(drawn)

    def forward(self, row: PackedRow, places: torch.Tensor) -> torch.Tensor:
        """[p] at the tokens `places` [p] of the row, as `TokenValues` gives them."""
        return self.said[row.tokens[places]]


def table_critic(
    config: dict[str, Any] | CriticConfig, moments: Moments | None = None
) -> TrainedCritic:
    """A critic that is a table, for passes over it. Its optimizer steps another model."""
    model = tiny_model().model
    return TrainedCritic(
        model,
        Table(),
        Optimizers(model, AdamW(lr=1e-3)),
        CriticConfig.model_validate(config),
        moments or Moments(),
    )
