"""Estimators of KL(π ‖ π_ref) per token (Schulman 2020), for the loss and for diagnostics."""

from typing import Literal

import torch

from learner.objective.losses import log_ratio
from services.contracts.config.objective.terms import AdaptiveBeta


def kl_estimate(
    kind: Literal["k1", "k2", "k3", "k3+"], logprobs: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """[k], with d = log π − log π_ref clamped to ±20: k1 d, k2 d²/2, k3 e^(−d) + d − 1; k3+ has
    k3's value and k2's gradient.

    In the loss, k1's gradient has expectation zero on-policy; k2's is that of the KL.
    """
    d = log_ratio(logprobs, reference)
    match kind:
        case "k1":
            return d
        case "k2":
            return d.square() / 2
        case "k3":
            return torch.expm1(-d) + d
        case "k3+":
            slope = d.square() / 2
            return (torch.expm1(-d) + d).detach() + slope - slope.detach()


def adapted_beta(config: AdaptiveBeta, beta: float, kl: float, samples: int) -> float:
    """β after a batch of `samples` completions whose KL, as `config.per` has it, was `kl` nats
    (Ziegler et al. 2019)."""
    error = min(max(kl / config.target - 1, -0.2), 0.2)
    return beta * (1 + error * samples / config.horizon)
