"""Advantages: how much better a sample is than the other samples of its prompt or of the batch.

Pure functions of rewards. A trajectory without a reward (its verifier broke) must never change
another trajectory's advantage.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from services.contracts.config.objective.terms import (
    GAE,
    Advantage,
    GlobalWhiten,
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    ReverseKL,
    RunningMean,
    SequenceValue,
)

EPSILON = 1e-6


def group_advantages(
    config: Advantage, rewards: torch.Tensor, baseline: float = 0.0
) -> torch.Tensor:
    """Advantages [n] of one group's `rewards` [n]. NaN marks a missing reward.

    A sample without a reward gets 0 and leaves the statistics. A group of one gets 0 too, because
    it has nothing to compare with. `running_mean` instead compares each sample with `baseline`, the
    mean of its prompt key. The standard deviation is the unbiased one.

    Some estimators compute their advantages later, and here the result is the rewards themselves:
    `gae` and `sequence_value` (which compare with a critic), `reverse_kl` (which ignores rewards),
    and `global_whiten` (which subtracts the group's mean with the option `baseline`).

    Sources: GRPO (Shao et al. 2024), Dr. GRPO (Liu et al. 2025), RLOO (Ahmadian et al. 2024),
    REINFORCE++ (Hu 2025), SPO (Xu and Ding 2025).
    """
    known = ~rewards.isnan()
    if isinstance(config, RunningMean):
        return (rewards - baseline).masked_fill(~known, 0.0)
    if isinstance(config, GAE | SequenceValue | ReverseKL) or (
        isinstance(config, GlobalWhiten) and not config.baseline
    ):
        return rewards.masked_fill(~known, 0.0)
    count = int(known.sum())
    advantages = torch.zeros_like(rewards)
    if count < 2:
        return advantages
    r = rewards[known]
    match config:
        case GroupMean() | GlobalWhiten():
            a = r - r.mean()
        case GroupZScore():
            a = (r - r.mean()) / (r.std() + EPSILON)
        case LeaveOneOut():
            a = r - (r.sum() - r) / (count - 1)
    # Equal rewards teach nothing: without this, 1/ε would scale up the rounding error of the mean.
    advantages[known] = torch.where((r == r[0]).all(), torch.zeros_like(a), a)
    return advantages


def discounted_returns(rewards: torch.Tensor, gamma: float) -> torch.Tensor:
    """[k] float64 return of each of a sample's tokens: the sum of gamma^distance · `rewards` [k]
    over the token and all later tokens."""
    nothing = torch.zeros_like(rewards)
    return generalised_advantages(rewards, nothing, 0.0, gamma, 1.0)


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, after: float, gamma: float, lambda_: float
) -> torch.Tensor:
    """[k] float64 advantage of each token: Σ (gamma·lambda)^distance · δ over the token and all
    later tokens, with δ_t = r_t + gamma·V_{t+1} − V_t (Schulman et al. 2016).

    `rewards` [k] of a sample's tokens in the loss, `values` [k] before each token, `after` the last
    token. Tokens outside the loss pass value and advantage on unchanged.
    """
    advantages: list[float] = []
    following, advantage = after, 0.0
    for reward, value in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
        advantage = reward + gamma * following - value + gamma * lambda_ * advantage
        advantages.append(advantage)
        following = value
    return torch.tensor(advantages[::-1], dtype=torch.float64)


def whitened(
    returns: Sequence[torch.Tensor],
    parts: Sequence[str],
    add_up: Callable[[Mapping[str, float]], Mapping[str, float]],
    keep_mean: bool = False,
) -> list[torch.Tensor]:
    """(G − mean) / (std + ε) of `returns` (a [k] for each sample). Mean and std are over the tokens
    of all samples of one part, on all ranks. `parts`: the part of each sample. With `keep_mean` the
    mean is added again.

    `add_up` sums by part over ranks. Every rank calls it three times, even a rank without samples.
    The result is 0 in a part with fewer than two tokens.
    """

    def sums(of: Callable[[str, torch.Tensor], float]) -> Mapping[str, float]:
        by_part = dict.fromkeys(parts, 0.0)
        for part, values in zip(parts, returns, strict=True):
            by_part[part] += of(part, values)
        return add_up(by_part)

    counts = sums(lambda _, values: float(values.numel()))
    totals = sums(lambda _, values: float(values.sum()))
    means = {part: totals[part] / max(count, 1.0) for part, count in counts.items()}
    squares = sums(lambda part, values: float((values - means[part]).square().sum()))
    result = []
    for part, values in zip(parts, returns, strict=True):
        if counts[part] < 2:
            result.append(torch.zeros_like(values))
            continue
        scale = (squares[part] / (counts[part] - 1)) ** 0.5 + EPSILON
        result.append((values - means[part]) / scale + (means[part] if keep_mean else 0.0))
    return result
