"""The loss of a critic, and the units in which it learns returns. Pure."""

import math
from dataclasses import dataclass

import torch

from services.contracts.config.objective.critic import (
    ExponentialNormalisation,
    HuberValueLoss,
    Normalisation,
    ValueLoss,
)


@dataclass(frozen=True)
class Scale:
    """A critic's units: its output is (value − mean) / deviation."""

    mean: float = 0.0
    deviation: float = 1.0
    clip: float = math.inf
    """Largest absolute output that the critic learns."""

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.double() * self.deviation + self.mean

    def target(self, value: torch.Tensor) -> torch.Tensor:
        """Return the output that the critic learns for `value`, clipped."""
        return ((value - self.mean) / self.deviation).clamp(-self.clip, self.clip)


@dataclass(frozen=True)
class Moments:
    weight: float = 0.0
    """Sum of the shares."""
    total: float = 0.0
    """Sum of share · return."""
    squares: float = 0.0
    """Sum of share · return²."""

    def after(self, config: Normalisation, count: float, total: float, squares: float) -> "Moments":
        """Return the moments with a batch of `count` returns added. `total` is their sum, `squares`
        the sum of their squares."""
        if count == 0:
            return self
        kept, share = 1.0, 1.0
        if isinstance(config, ExponentialNormalisation):
            kept, share = config.beta, (1 - config.beta) / count
        return Moments(
            kept * self.weight + share * count,
            kept * self.total + share * total,
            kept * self.squares + share * squares,
        )

    def scale(self, config: Normalisation | None) -> Scale:
        """Return the units from the mean and deviation so far. Without `config`, and before the
        first batch, the mean is 0 and the deviation 1. AReaL uses an `eps` of 0.01 and a `clip` of
        5."""
        if config is None or self.weight == 0:
            return Scale()
        mean = self.total / self.weight
        variance = max(self.squares / self.weight - mean * mean, config.eps)
        return Scale(mean, variance**0.5, math.inf if config.clip is None else config.clip)


def value_loss(
    config: ValueLoss, values: torch.Tensor, before: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [p] loss of the critic's `values` ([p], with gradient), and [p] whether the clip
    removed the gradient. `before` [p]: the values before the batch's updates.

    The loss is the larger one with and without the clip (Schulman et al.'s baselines; torchtune).
    """
    plain = _distance(config, values - target)
    if config.clip_range is None:
        return plain, torch.zeros_like(values, dtype=torch.bool)
    near = before + (values - before).clamp(-config.clip_range, config.clip_range)
    clipped = _distance(config, near - target)
    return torch.maximum(plain, clipped), (clipped > plain).detach()


def _distance(config: ValueLoss, d: torch.Tensor) -> torch.Tensor:
    if isinstance(config, HuberValueLoss):
        return torch.nn.functional.huber_loss(
            d, torch.zeros_like(d), reduction="none", delta=config.delta
        )
    return d.square() / 2
