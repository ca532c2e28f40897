"""Off-policy correction: the weight of each token's loss, given that another policy sampled the
token.

w = exp(log π_prox − log μ), always detached. A configured correction always applies. It never
depends on another option.
"""

from dataclasses import dataclass

import torch

from learner.objective.losses import Tokens, ratio_of, sequence_mean
from services.contracts.config.objective.terms import (
    Correction,
    MaskCorrection,
    NoCorrection,
    OffPolicySequenceMask,
    TruncateCorrection,
)


@dataclass(frozen=True)
class Corrected:
    """Weights [k], and masks of the tokens that the correction masked or truncated."""

    weights: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def correction_weights(config: Correction, tokens: Tokens, sampler_is_proximal: bool) -> Corrected:
    """Weight of each token's policy loss.

    With `sampler_is_proximal` w is 1, and a mask uses sg(ρ) instead, which then equals π/μ.
    truncate: TIS (Yao et al. 2025); mask: IcePop (2025); off_policy_sequence_mask: DeepSeek-V3.2
    (2025), which always uses π/μ.
    """
    logprobs = tokens.logprobs.detach()
    log_w = (tokens.proximal - tokens.sampler).detach()
    never = torch.zeros_like(log_w, dtype=torch.bool)
    match config:
        case NoCorrection():
            return Corrected(torch.ones_like(log_w), never, never)
        case TruncateCorrection(cap=cap, level=level):
            w = ratio_of(_at(level, log_w, tokens))
            return Corrected(w.clamp(max=cap), never, w > cap)
        case MaskCorrection(low=low, high=high, level=level):
            w = ratio_of(_at(level, log_w, tokens))
            seen = w
            if sampler_is_proximal:
                seen = ratio_of(_at(level, logprobs - tokens.sampler, tokens))
            under, over = seen < low, seen > high
            return Corrected(w.masked_fill(under | over, 0.0), under, over)
        case OffPolicySequenceMask(delta=delta):
            distance = _at("sequence", tokens.sampler - logprobs, tokens)
            out = (tokens.advantages < 0) & (distance > delta)
            return Corrected(torch.ones_like(log_w).masked_fill(out, 0.0), out, never)


def loglinear_proximal(
    logprobs: torch.Tensor, sampler: torch.Tensor, staleness: torch.Tensor
) -> torch.Tensor:
    """[k] log π_prox between log μ and log π: log μ + d/(d + 1) · (sg(log π) − log μ), with d =
    `staleness` [k], the versions between the token's sampler and the version being trained.

    AReaL uses this instead of a recomputed proximal policy: it needs no forward pass.
    """
    share = staleness / (staleness + 1)
    return sampler + share.to(sampler.dtype) * (logprobs.detach() - sampler)


def _at(level: str, values: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """[k] `values` of the tokens, or the means over their sequences."""
    if level == "token":
        return values
    return sequence_mean(values, tokens.sequence, tokens.n)[tokens.sequence]
