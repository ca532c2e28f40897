"""The composed objective, token by token: correction · policy loss + β·KL − c·entropy.

Pure. `step` weights the tokens (`aggregation`) and sums them.
"""

from dataclasses import dataclass, replace

import torch

from learner.objective.kl import kl_estimate
from learner.objective.losses import TokenLoss, Tokens, policy_loss
from learner.objective.off_policy import Corrected, correction_weights
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import NoKL, ReferenceKL, ReinforceLoss, RewardKL


@dataclass(frozen=True)
class Objective:
    algorithm: Algorithm
    temperature: float
    max_tokens: int
    """Longest completion of any dataset: the denominator of Dr. GRPO."""
    adapted_beta: float | None = None
    """The adapted β, if it is adaptive and has changed since the run began."""

    @property
    def beta(self) -> float:
        kl = self.algorithm.kl
        if isinstance(kl, NoKL):
            return 0.0
        return kl.beta if kl.adaptive is None or self.adapted_beta is None else self.adapted_beta


@dataclass(frozen=True)
class Composed:
    """The objective of `k` tokens."""

    loss: torch.Tensor
    """[k], with gradient: all terms that are aggregated."""
    kl: torch.Tensor
    """[k] estimate of the KL to the reference; 0 without one."""
    sample_kl: torch.Tensor | None
    """[k] β·KL, with gradient, if it is summed over samples and not aggregated."""
    policy: TokenLoss
    corrected: Corrected


def composed_loss(
    algorithm: Algorithm, beta: float, tokens: Tokens, entropy: torch.Tensor
) -> Composed:
    """Return all terms of the objective, per token. `beta`: current weight of the KL; `entropy`
    [k]."""
    policy = policy_loss(algorithm.loss, tokens)
    # reinforce has no ratio, so a correction weights it by the whole sg(π)/μ.
    without_ratio = isinstance(algorithm.loss, ReinforceLoss)
    corrected = correction_weights(
        algorithm.correction,
        replace(tokens, proximal=tokens.logprobs) if without_ratio else tokens,
        sampler_is_proximal=tokens.proximal is tokens.sampler and not without_ratio,
    )
    loss = corrected.weights * policy.loss
    kl, sample_kl = torch.zeros_like(loss), None
    if tokens.reference is not None:
        match algorithm.kl:
            case ReferenceKL(type=kind, per=per):
                kl = kl_estimate(kind, tokens.logprobs, tokens.reference)
                if per == "sample":
                    sample_kl = beta * kl
                else:
                    loss = loss + beta * kl
            case RewardKL():
                kl = tokens.proximal - tokens.reference
    if algorithm.entropy_bonus:
        loss = loss - algorithm.entropy_bonus * entropy
    return Composed(loss, kl, sample_kl, policy, corrected)
