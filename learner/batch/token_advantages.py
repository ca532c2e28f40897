"""Advantages of single tokens (over the whole batch, by GAE, by a teacher), the returns of critics,
and the samples as the objective sees them.

Fixed while the batch is trained. Pure.
"""

from collections.abc import Callable, Sequence

import torch

from learner.batch.samples import Sample
from learner.objective.advantages import discounted_returns, generalised_advantages, whitened
from learner.objective.compose import Objective
from learner.objective.losses import Tokens, log_ratio
from learner.objective.off_policy import loglinear_proximal
from learner.objective.value_loss import Scale
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    GAE,
    GlobalWhiten,
    LoglinearProximal,
    ReverseKL,
    RewardKL,
    SequenceValue,
)


def set_returns(
    samples: Sequence[Sample],
    objective: Objective,
    add_up: Callable[[list[float]], list[float]],
    scale: Scale,
) -> None:
    """Set advantages of estimators that use the whole batch, a critic or a teacher, and the returns
    of the critic. `samples`: all that this rank trains, with their proximal, reference and
    teacher's log-probabilities and values. `add_up`: sums over ranks; `scale`: of the values."""
    config = objective.algorithm.advantage
    match config:
        case GlobalWhiten(gamma=gamma):
            found = [discounted_returns(token_rewards(s, objective), gamma) for s in samples]
            found = whitened(found, add_up)
        case GAE():
            found = [_generalised(sample, objective, config, scale) for sample in samples]
            if config.whiten:
                found = whitened(found, add_up, config.keep_mean)
        case SequenceValue():
            found = [_over_value(sample, scale) for sample in samples]
        case ReverseKL():
            found = [_to_teacher(sample) for sample in samples]
        case _:
            return
    for sample, advantages in zip(samples, found, strict=True):
        sample.token_advantages = advantages


def _generalised(sample: Sample, objective: Objective, config: GAE, scale: Scale) -> torch.Tensor:
    """Advantages [k]; the returns are these and the values."""
    values = scale.value(known(sample.values))
    after = float(values[-1]) if config.bootstrap_truncated and sample.truncated else 0.0
    rewards = token_rewards(sample, objective)
    advantages = generalised_advantages(rewards, values[:-1], after, config.gamma, config.lambda_)
    sample.returns = advantages + values[:-1]
    return advantages


def _over_value(sample: Sample, scale: Scale) -> torch.Tensor:
    """Advantages [k]: of the whole completion, on each of its tokens."""
    sample.returns = torch.tensor([sample.advantage], dtype=torch.float64)
    apart = sample.returns - scale.value(known(sample.values)[-1:])
    return apart.expand(len(sample.sampler_logprobs))


def _to_teacher(sample: Sample) -> torch.Tensor:
    """Advantages [k]: how much more likely the teacher finds each token."""
    return log_ratio(known(sample.teacher_logprobs), policy_logprobs(sample)).double()


def token_rewards(sample: Sample, objective: Objective) -> torch.Tensor:
    """[k] float64 reward of each token in the loss: the sample's reward at the last one, less dense
    rewards before it; and −β·KL on each where the KL is in the reward."""
    rewards = -penalties(sample, objective).double()
    rewards[-1] += sample.advantage
    if sample.rewards is not None:
        rewards += sample.rewards
        rewards[-1] -= sample.rewards.sum()
    return rewards


def penalties(sample: Sample, objective: Objective) -> torch.Tensor:
    """[k] β·(log π_prox − log π_ref) where the KL is in the reward, else 0."""
    if not isinstance(objective.algorithm.kl, RewardKL):
        return torch.zeros_like(sample.sampler_logprobs)
    return objective.beta * log_ratio(policy_logprobs(sample), known(sample.reference_logprobs))


def policy_logprobs(sample: Sample) -> torch.Tensor:
    """[k] log π_prox, fixed while the batch is trained."""
    proximal = sample.proximal_logprobs
    return sample.sampler_logprobs if proximal is None else proximal


def gathered(samples: Sequence[Sample], logprobs: torch.Tensor, algorithm: Algorithm) -> Tokens:
    """The samples' tokens, concatenated in the order of `logprobs` [k]."""
    dtype = logprobs.dtype

    def to(values: torch.Tensor) -> torch.Tensor:
        """On the device, which the host does not wait for."""
        return values.to(logprobs.device, non_blocking=True)

    counts = torch.tensor([len(sample.sampler_logprobs) for sample in samples])
    sequence = torch.arange(len(samples)).repeat_interleave(counts)
    sequence = to(sequence)
    if samples[0].token_advantages is not None:
        advantages = to(torch.cat([known(s.token_advantages) for s in samples]).to(dtype))
    else:
        each = torch.tensor([s.advantage for s in samples], dtype=dtype)
        advantages = to(each)[sequence]
    sampler = to(torch.cat([sample.sampler_logprobs for sample in samples]))
    proximal = sampler
    if isinstance(algorithm.proximal, LoglinearProximal):
        staleness = to(torch.cat([sample.staleness for sample in samples]))
        proximal = loglinear_proximal(logprobs, sampler, staleness)
    elif samples[0].proximal_logprobs is not None:
        proximal = to(torch.cat([known(s.proximal_logprobs) for s in samples]))
    reference = None
    if samples[0].reference_logprobs is not None:
        reference = to(torch.cat([known(s.reference_logprobs) for s in samples]))
    return Tokens(logprobs, proximal, sampler, advantages, sequence, len(samples), reference)


def known(value: torch.Tensor | None) -> torch.Tensor:
    """`value`, which an earlier pass over the batch has set."""
    assert value is not None
    return value
