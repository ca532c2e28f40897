"""Estimators of KL(π ‖ π_ref) per token (Schulman 2020), for the loss and for diagnostics."""

from typing import Literal

import torch

from learner.objective.losses import MAX_LOG_RATIO
from services.contracts.config.objective.terms import AdaptiveBeta


def kl_estimate(
    kind: Literal["k1", "k2", "k3", "k3+"], logprobs: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """[k], with d = log π − log π_ref: k1 d, k2 d²/2, k3 e^(−d) + d − 1; k3+ has k3's value and
    k2's gradient. k3 clamps d to at least −20, because e^(−d) would become infinite.

    In the loss, k1's gradient has expectation zero on-policy; k2's gradient is that of the KL.
    """
    d = logprobs - reference
    match kind:
        case "k1":
            return d
        case "k2":
            return d.square() / 2
        case "k3":
            return _k3(d)
        case "k3+":
            slope = d.square() / 2
            return _k3(d).detach() + slope - slope.detach()


def _k3(d: torch.Tensor) -> torch.Tensor:
    bounded = d.clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded


def adapted_beta(config: AdaptiveBeta, beta: float, kl: float, samples: int) -> float:
    """Return β after a batch of `samples` completions with a KL of `kl` nats, measured as
    `config.per` says (Ziegler et al. 2019)."""
    error = min(max(kl / config.target - 1, -0.2), 0.2)
    return beta * (1 + error * samples / config.horizon)
