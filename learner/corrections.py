"""Off-policy correction: what each token's loss counts, given that another policy sampled it.

w = exp(log π_prox − log μ), always detached. A configured correction always applies; it never
depends on another switch.
"""

from dataclasses import dataclass

import torch

from learner.losses import log_ratio, sequence_mean
from services.contracts.config.algorithm import (
    Correction,
    MaskCorrection,
    NoCorrection,
    TruncateCorrection,
)


@dataclass(frozen=True)
class Corrected:
    """Weights [k] and which tokens the correction took out (or, truncating, cut down)."""

    weights: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def correction_weights(
    config: Correction,
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    sequence: torch.Tensor,
    n: int,
    sampler_is_proximal: bool,
) -> Corrected:
    """Weight of each token's policy loss. All tensors [k].

    With `sampler_is_proximal` w is 1, and a mask looks at sg(ρ) instead, which is then π/μ.
    truncate: TIS (Yao et al. 2025); mask: IcePop (2025).
    """
    log_w = log_ratio(proximal_logprobs, sampler_logprobs).detach()
    looked_at = log_ratio(logprobs.detach(), sampler_logprobs) if sampler_is_proximal else log_w
    if not isinstance(config, NoCorrection) and config.level == "sequence":
        log_w = sequence_mean(log_w, sequence, n)[sequence]
        looked_at = sequence_mean(looked_at, sequence, n)[sequence]
    w, seen = log_w.exp(), looked_at.exp()
    never = torch.zeros_like(seen, dtype=torch.bool)
    match config:
        case NoCorrection():
            return Corrected(torch.ones_like(w), never, never)
        case TruncateCorrection():
            return Corrected(w.clamp(max=config.cap), never, w > config.cap)
        case MaskCorrection():
            low, high = seen < config.low, seen > config.high
            return Corrected(torch.where(low | high, torch.zeros_like(w), w), low, high)
