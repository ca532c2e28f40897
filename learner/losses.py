"""Policy losses per token, to minimise. Pure functions; `aggregation` makes them one number.

Symbols as in docs/algorithms.md: ρ = exp(log π − log π_prox), A the advantage. Every tensor is
[k], one entry per token that trains; `sequence` [k] says which of `n` sequences it belongs to.
Log ratios are clamped to ±20 before exp.
"""

from dataclasses import dataclass

import torch

from services.contracts.config.algorithm import CISPOLoss, GSPOLoss, Loss, PPOLoss, ReinforceLoss

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class TokenLoss:
    """What a policy loss says about each token."""

    loss: torch.Tensor
    """[k], with gradient."""
    ratio: torch.Tensor
    """[k] ρ (gspo: of the sequence), detached."""
    clipped_low: torch.Tensor
    """[k] bool: the lower clip took the token's gradient away (cispo: lowered its weight)."""
    clipped_high: torch.Tensor
    """[k] bool: the same for the upper clip."""


def log_ratio(logprobs: torch.Tensor, against: torch.Tensor) -> torch.Tensor:
    """logprobs − against, clamped to ±20."""
    return (logprobs - against).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_mean(values: torch.Tensor, sequence: torch.Tensor, n: int) -> torch.Tensor:
    """[n] mean of `values` [k] over each sequence's tokens; 0 where it has none."""
    sums = values.new_zeros(n).index_add(0, sequence, values)
    counts = values.new_zeros(n).index_add(0, sequence, torch.ones_like(values))
    return sums / counts.clamp(min=1)


def policy_loss(
    config: Loss,
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    sequence: torch.Tensor,
    n: int,
) -> TokenLoss:
    """The configured loss of each token.

    ppo: Schulman et al. 2017, dual clip: Ye et al. 2020. cispo: MiniMax-M1 (2025). gspo: Zheng
    et al. 2025, in its token form, so that every aggregation applies to it.
    """
    log_rho = log_ratio(logprobs, proximal_logprobs)
    match config:
        case ReinforceLoss():
            never = torch.zeros_like(advantages, dtype=torch.bool)
            return TokenLoss(-advantages * logprobs, log_rho.detach().exp(), never, never)
        case CISPOLoss():
            rho = log_rho.detach().exp()
            weight = rho.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
            return TokenLoss(
                -weight * advantages * logprobs,
                rho,
                rho < 1 - config.epsilon_low,
                rho > 1 + config.epsilon_high,
            )
        case GSPOLoss():
            mean = sequence_mean(log_rho.detach(), sequence, n)[sequence]
            rho = (mean + logprobs - logprobs.detach()).exp()
            return _clipped(rho, advantages, config.epsilon_low, config.epsilon_high, None)
        case PPOLoss():
            return _clipped(
                log_rho.exp(),
                advantages,
                config.epsilon_low,
                config.epsilon_high,
                config.dual_clip,
            )


def _clipped(
    rho: torch.Tensor, a: torch.Tensor, low: float, high: float, dual: float | None
) -> TokenLoss:
    surrogate = torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)
    if dual is not None:
        surrogate = torch.where(a < 0, torch.maximum(surrogate, dual * a), surrogate)
    fixed = rho.detach()
    return TokenLoss(-surrogate, fixed, (fixed < 1 - low) & (a < 0), (fixed > 1 + high) & (a > 0))
