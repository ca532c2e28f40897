"""Estimators of KL(π ‖ π_ref) per token (Schulman 2020), for the loss and for diagnostics."""

from typing import Literal

import torch

from learner.losses import log_ratio


def kl_estimate(
    kind: Literal["k1", "k2", "k3"], logprobs: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """[k], with d = log π − log π_ref clamped to ±20: k1 d, k2 d²/2, k3 e^(−d) + d − 1.

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
