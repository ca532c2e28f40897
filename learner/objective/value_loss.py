"""What a critic learns: its loss, and the units it learns returns in. Pure."""

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

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values that these outputs stand for, float64."""
        return outputs.double() * self.deviation + self.mean

    def units(self, value: torch.Tensor) -> torch.Tensor:
        """The output that stands for `value`."""
        return (value - self.mean) / self.deviation


@dataclass(frozen=True)
class Moments:
    """Returns so far, of which each counts a share; before the first batch, none."""

    weight: float = 0.0
    """Sum of the shares."""
    total: float = 0.0
    """Sum of share · return."""
    squares: float = 0.0
    """Sum of share · return²."""

    def after(self, config: Normalisation, count: float, total: float, squares: float) -> "Moments":
        """With a batch of `count` returns, whose sum and sum of squares those are."""
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
        """Units of the mean and deviation so far; of 0 and 1 without `config`, and where there is
        nothing yet. As in AReaL, but that its variance is at least 0.01."""
        if config is None or self.weight == 0:
            return Scale()
        mean = self.total / self.weight
        return Scale(mean, max(self.squares / self.weight - mean * mean, config.eps) ** 0.5)


def value_loss(
    config: ValueLoss, values: torch.Tensor, before: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[p] loss of the critic's `values` ([p], with gradient), and [p] whether the clip took the
    gradient away. `before` [p]: those before the batch's updates.

    The larger of the loss with and without the clip (Schulman et al.'s baselines; torchtune).
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
