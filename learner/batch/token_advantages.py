"""Advantages of single tokens (over the whole batch, by GAE, by a teacher), the returns of critics,
and the tensors that the objective reads.

Advantages and returns stay fixed while the batch is trained. Pure.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from learner.batch.samples import TrainingSample
from learner.objective.advantages import discounted_returns, generalised_advantages, whitened
from learner.objective.compose import Objective
from learner.objective.losses import Tokens
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
    samples: Sequence[TrainingSample],
    objective: Objective,
    add_up: Callable[[Mapping[str, float]], Mapping[str, float]],
    scale: Scale,
) -> None:
    """Set the advantages of estimators that use the whole batch, a critic or a teacher, and the
    returns of the critic. `samples`: all samples that this rank trains, with their
    log-probabilities (proximal, reference, teacher) and values. `add_up`: sums by name over ranks;
    `scale`: the units of the values."""
    algorithm = objective.algorithm
    config = algorithm.advantage
    parts = [str(sample.task) if algorithm.whitens_groups else "" for sample in samples]
    match config:
        case GlobalWhiten(gamma=gamma):
            by_sample = [discounted_returns(token_rewards(s, objective), gamma) for s in samples]
            by_sample = whitened(by_sample, parts, add_up)
        case GAE():
            by_sample = [_generalised(sample, objective, config, scale) for sample in samples]
            if config.whiten:
                by_sample = whitened(by_sample, parts, add_up, config.keep_mean)
        case SequenceValue():
            by_sample = [_over_value(sample, scale) for sample in samples]
        case ReverseKL():
            # log π_teacher − log π_prox
            by_sample = [(known(s.teacher_logprobs) - policy_logprobs(s)).double() for s in samples]
        case _:
            return
    for sample, advantages in zip(samples, by_sample, strict=True):
        sample.token_advantages = advantages


def _generalised(
    sample: TrainingSample, objective: Objective, config: GAE, scale: Scale
) -> torch.Tensor:
    """Return the advantages [k] by GAE and set the returns: advantages + values."""
    values = scale.value(known(sample.values))
    if config.score_at == "end" and not sample.truncated:
        # The place after the last token is one more step, without an action.
        rewards = torch.cat([earned_before(sample, objective), score_left(sample)])
        advantages = generalised_advantages(rewards, values, 0.0, config.gamma, config.lambda_)
        sample.returns = advantages + values
        return advantages[:-1]
    after = float(values[-1]) if config.bootstrap_truncated and sample.truncated else 0.0
    rewards = token_rewards(sample, objective)
    advantages = generalised_advantages(rewards, values[:-1], after, config.gamma, config.lambda_)
    sample.returns = advantages + values[:-1]
    return advantages


def _over_value(sample: TrainingSample, scale: Scale) -> torch.Tensor:
    """Return the advantages [k]: reward − value of the whole completion, on each token."""
    sample.returns = torch.tensor([sample.advantage], dtype=torch.float64)
    advantage = sample.returns - scale.value(known(sample.values)[-1:])
    return advantage.expand(len(sample.sampler_logprobs))


def token_rewards(sample: TrainingSample, objective: Objective) -> torch.Tensor:
    """[k] float64 reward of each token in the loss. The last token gets the sample's reward minus
    the dense rewards. Each token gets −β·KL if the KL is in the reward."""
    rewards = earned_before(sample, objective)
    rewards[-1:] += score_left(sample)
    return rewards


def earned_before(sample: TrainingSample, objective: Objective) -> torch.Tensor:
    """[k] float64 rewards of the tokens in the loss, without the remainder of the score that the
    last token gets."""
    rewards = -penalties(sample, objective).double()
    return rewards if sample.rewards is None else rewards + sample.rewards


def score_left(sample: TrainingSample) -> torch.Tensor:
    """[1] float64 share of the sample's score that no token has earned."""
    dense = 0.0 if sample.rewards is None else float(sample.rewards.sum())
    return torch.tensor([sample.advantage - dense], dtype=torch.float64)


def penalties(sample: TrainingSample, objective: Objective) -> torch.Tensor:
    """[k] β·(log π_prox − log π_ref) if the KL is in the reward, else 0."""
    if not isinstance(objective.algorithm.kl, RewardKL):
        return torch.zeros_like(sample.sampler_logprobs)
    return objective.beta * (policy_logprobs(sample) - known(sample.reference_logprobs))


def policy_logprobs(sample: TrainingSample) -> torch.Tensor:
    """[k] log π_prox, which stays fixed while the batch is trained."""
    proximal = sample.proximal_logprobs
    return sample.sampler_logprobs if proximal is None else proximal


def gathered(
    samples: Sequence[TrainingSample], logprobs: torch.Tensor, algorithm: Algorithm
) -> Tokens:
    """Concatenate the samples' tokens in the order of `logprobs` [k]."""
    dtype = logprobs.dtype

    def to(values: torch.Tensor) -> torch.Tensor:
        """Copy to the device without blocking the host."""
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
    """Assert that an earlier pass over the batch has set `value`, and return it."""
    assert value is not None
    return value
