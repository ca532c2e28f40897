"""Policy losses per token, to minimise. Pure functions; `aggregation` sums them to one number.

Symbols as in docs/algorithms.md: ρ = exp(log π − log π_prox), A the advantage. A log ratio is
clamped to ±20 before its exp and nowhere else, because a clamp has no gradient.
"""

from dataclasses import dataclass

import torch

from services.contracts.config.objective.terms import (
    CISPOLoss,
    DPPOLoss,
    GSPOLoss,
    Loss,
    PPOLoss,
    ReinforceLoss,
    SAPOLoss,
    SequencePPOLoss,
)

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Tokens:
    """The `k` trained tokens of a micro-batch, and the sequence (of `n`) of each token."""

    logprobs: torch.Tensor
    """[k] log π, with gradient."""
    proximal: torch.Tensor
    """[k] log π_prox."""
    sampler: torch.Tensor
    """[k] log μ."""
    advantages: torch.Tensor
    """[k] A."""
    sequence: torch.Tensor
    """[k] int64."""
    n: int
    reference: torch.Tensor | None = None
    """[k] log π_ref, if the objective has a KL."""


@dataclass(frozen=True)
class TokenLoss:
    """A policy loss, token by token."""

    loss: torch.Tensor
    """[k], with gradient."""
    ratio: torch.Tensor
    """[k] ρ (gspo, sequence_ppo: of the sequence; dppo: π/μ), detached."""
    clipped_low: torch.Tensor
    """[k] bool: the lower bound removed the token's gradient (cispo: lowered its weight)."""
    clipped_high: torch.Tensor
    """[k] bool: the same for the upper bound."""


def ratio_of(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of `log_ratio`, clamped to ±20 before the exp: e^89 is infinite in float32."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_sum(values: torch.Tensor, sequence: torch.Tensor, n: int) -> torch.Tensor:
    """[n] sum of `values` [k] over each sequence's tokens."""
    return values.new_zeros(n).index_add(0, sequence, values)


def sequence_mean(values: torch.Tensor, sequence: torch.Tensor, n: int) -> torch.Tensor:
    """[n] mean of `values` [k] over each sequence's tokens; 0 for a sequence without tokens."""
    counts = sequence_sum(torch.ones_like(values), sequence, n)
    return sequence_sum(values, sequence, n) / counts.clamp(min=1)


def policy_loss(config: Loss, tokens: Tokens) -> TokenLoss:
    """Return the configured loss of each token.

    ppo: Schulman et al. 2017, dual clip: Ye et al. 2020. cispo: MiniMax-M1 (2025). gspo: Zheng et
    al. 2025, in its token form, so that every aggregation applies to it. sequence_ppo: as in
    minimind; each token carries the loss of its sequence. dppo: Qi et al. 2026, with the total
    variation of a binary choice. sapo: Gao et al. 2025.
    """
    a, logprobs = tokens.advantages, tokens.logprobs
    log_rho = logprobs - tokens.proximal
    never = torch.zeros_like(a, dtype=torch.bool)
    match config:
        case ReinforceLoss():
            return TokenLoss(-a * logprobs, ratio_of(log_rho.detach()), never, never)
        case CISPOLoss(epsilon_low=low, epsilon_high=high, absolute_cap=cap):
            rho = ratio_of(log_rho.detach())
            floor, top = (0.0, cap) if cap is not None else (1 - low, 1 + high)
            weight = rho.clamp(floor, top)
            return TokenLoss(-weight * a * logprobs, rho, rho < floor, rho > top)
        case GSPOLoss(epsilon_low=low, epsilon_high=high):
            mean = sequence_mean(log_rho.detach(), tokens.sequence, tokens.n)[tokens.sequence]
            # π/sg(π) is 1 and carries the gradient.
            rho = ratio_of(mean) * (logprobs - logprobs.detach()).exp()
            return _clipped(rho, a, low, high, None)
        case SequencePPOLoss(epsilon_low=low, epsilon_high=high):
            whole = sequence_sum(log_rho, tokens.sequence, tokens.n)[tokens.sequence]
            return _clipped(ratio_of(whole), a, low, high, None)
        case DPPOLoss(delta=delta, tau=tau):
            log_r = logprobs - tokens.sampler
            r = ratio_of(log_r)
            moved = logprobs.detach().exp() - tokens.sampler.exp()
            down, up = (a < 0) & (moved < -delta), (a > 0) & (moved > delta)
            gain = (a * r).masked_fill(down | up, 0.0)
            return TokenLoss(tau * log_r.square() - gain, r.detach(), down, up)
        case SAPOLoss(tau_positive=positive, tau_negative=negative):
            rho = ratio_of(log_rho)
            sharpness = torch.where(a > 0, positive, negative).to(rho.dtype)
            gate = 4 / sharpness * torch.sigmoid(sharpness * (rho - 1))
            return TokenLoss(-gate * a, rho.detach(), never, never)
        case PPOLoss(epsilon_low=low, epsilon_high=high, dual_clip=dual):
            return _clipped(ratio_of(log_rho), a, low, high, dual)


def _clipped(
    rho: torch.Tensor, a: torch.Tensor, low: float, high: float, dual: float | None
) -> TokenLoss:
    surrogate = torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)
    if dual is not None:
        surrogate = torch.where(a < 0, torch.maximum(surrogate, dual * a), surrogate)
    fixed = rho.detach()
    return TokenLoss(-surrogate, fixed, (fixed < 1 - low) & (a < 0), (fixed > 1 + high) & (a > 0))
