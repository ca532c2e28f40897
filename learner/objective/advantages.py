"""How much better each sample was than the others, of its prompt or of the whole batch.

Pure functions of rewards. Must never let a trajectory without a reward (its verifier broke) touch
another one's advantage.
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
    """Advantages [n] of one group's `rewards` [n]; NaN marks a reward that does not exist.

    Samples without a reward get 0 and leave the statistics; so does a group of one, which has
    nothing to compare with, unless `running_mean` compares it with `baseline`, the mean of its
    prompt key. The standard deviation is the unbiased one. With `global_whiten`, what comes back
    are the rewards that `discounted_returns` takes, less their mean with its option `baseline`;
    with `gae` and `sequence_value`, which compare with a critic, and `reverse_kl`, which has no use
    for them, the rewards.

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
    # A constant group has nothing to teach; rounding in the mean must not be scaled up by 1/ε.
    advantages[known] = torch.where((r == r[0]).all(), torch.zeros_like(a), a)
    return advantages


def discounted_returns(rewards: torch.Tensor, gamma: float) -> torch.Tensor:
    """[k] float64 return of each of a sample's tokens: the sum over itself and those after it of
    gamma^distance · `rewards` [k]."""
    nothing = torch.zeros_like(rewards)
    return generalised_advantages(rewards, nothing, 0.0, gamma, 1.0)


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, after: float, gamma: float, lambda_: float
) -> torch.Tensor:
    """[k] float64 Σ (gamma·lambda)^distance · δ over each token and those after it, with δ_t = r_t
    + gamma·V_{t+1} − V_t (Schulman et al. 2016).

    `rewards` [k] of a sample's tokens in the loss, `values` [k] before each, `after` the last.
    Tokens between them that are not in the loss pass value and advantage on as they are.
    """
    found: list[float] = []
    following, advantage = after, 0.0
    for reward, value in zip(reversed(rewards.tolist()), reversed(values.tolist()), strict=True):
        advantage = reward + gamma * following - value + gamma * lambda_ * advantage
        found.append(advantage)
        following = value
    return torch.tensor(found[::-1], dtype=torch.float64)


def whitened(
    returns: Sequence[torch.Tensor],
    parts: Sequence[str],
    add_up: Callable[[Mapping[str, float]], Mapping[str, float]],
    keep_mean: bool = False,
) -> list[torch.Tensor]:
    """(G − mean) / (std + ε) of `returns` (a [k] for each sample), over the tokens of all samples
    of its part, on all ranks; with `keep_mean` the mean is added again. `parts`: of each sample.

    `add_up` gives sums by part over ranks, and is called three times on every rank, also on one
    without samples. The result is 0 in a part with fewer than two tokens.
    """

    def sums(of: Callable[[str, torch.Tensor], float]) -> Mapping[str, float]:
        found = dict.fromkeys(parts, 0.0)
        for part, one in zip(parts, returns, strict=True):
            found[part] += of(part, one)
        return add_up(found)

    counts = sums(lambda _, one: float(one.numel()))
    totals = sums(lambda _, one: float(one.sum()))
    means = {part: totals[part] / max(count, 1.0) for part, count in counts.items()}
    squares = sums(lambda part, one: float((one - means[part]).square().sum()))
    found = []
    for part, one in zip(parts, returns, strict=True):
        if counts[part] < 2:
            found.append(torch.zeros_like(one))
            continue
        scale = (squares[part] / (counts[part] - 1)) ** 0.5 + EPSILON
        found.append((one - means[part]) / scale + (means[part] if keep_mean else 0.0))
    return found
