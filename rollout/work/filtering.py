"""Chooses the completions of a prompt to train (`best_of`), and the groups to filter. Pure.

Both use rewards before shaping, which the learner does. A completion without a reward (its verifier
broke) is chosen last, and does not count in the filter.
"""

from collections.abc import Sequence
from statistics import fmean

from services.contracts.config.objective.selection import BestOf, DynamicSampling

Rewards = Sequence[float | None]
"""Rewards of one prompt's completions. None: the completion has no reward."""


def chosen(best_of: BestOf, rewards: Rewards, lengths: Sequence[int], k: int) -> list[int]:
    """Return the indices of the `k` completions to train, in the order of sampling. If rewards are
    equal, the completion with more tokens (`lengths`) is better."""
    best_first = sorted(
        (i for i, reward in enumerate(rewards) if reward is not None),
        key=lambda i: (rewards[i], lengths[i]),
        reverse=True,
    )
    unknown = [i for i, reward in enumerate(rewards) if reward is None]
    if len(best_first) > k:
        top = {"best": k, "worst": 0, "both": (k + 1) // 2}[best_of.keep]
        best_first = best_first[:top] + best_first[len(best_first) - (k - top) :]
    return sorted([*best_first, *unknown][:k])


def filter_reason(config: DynamicSampling, trained: Rewards, sampled: Rewards) -> str | None:
    """Return why a group is filtered, or None. `trained` has the rewards of the completions to
    train, `sampled` those of all. At least one reward is known."""
    known = [reward for reward in trained if reward is not None]
    if len(set(known)) < 2:
        missing = len(trained) - len(known)
        without = f", and {missing} samples have none" if missing else ""
        return f"all its rewards are {known[0]:g}{without}"
    mean = fmean(reward for reward in sampled if reward is not None)
    if config.low is not None and mean < config.low:
        return f"its mean reward {mean:g} is below algorithm.dynamic_sampling.low {config.low:g}"
    if config.high is not None and mean > config.high:
        return f"its mean reward {mean:g} is above algorithm.dynamic_sampling.high {config.high:g}"
    return None
