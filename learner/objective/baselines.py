"""Running means of rewards by prompt key, the baselines of `running_mean`. Pure.

The means are part of a run's state. Each batch is compared with the means of earlier batches, and
its rewards are then added in the order of the tasks. A restarted learner computes the same means.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

MOST_KEYS = 100_000
"""Most keys that are kept: those trained last. A checkpoint has about 60 bytes for each key."""


class Mean(NamedTuple):
    value: float
    rewards: int
    """Number of rewards in the mean."""

    def with_reward(self, reward: float, decay: float) -> "Mean":
        """Return the mean with one more reward. The first rewards count equally, later ones 1 −
        `decay` each."""
        step = max(1 / (self.rewards + 1), 1 - decay)
        return Mean(self.value + step * (reward - self.value), self.rewards + 1)


class GroupReward(NamedTuple):
    key: str
    """The group's prompt key. Empty if it has no key."""
    reward: float
    """Mean over the group's samples, after shaping."""


@dataclass(frozen=True)
class Baselines:
    overall: Mean = field(default_factory=partial(Mean, 0.0, 0))
    """Mean of all rewards, whatever their keys."""
    keys: dict[str, Mean] = field(default_factory=dict)
    """Means by prompt key. The keys trained last come last."""

    def begun(self, batch: Sequence[GroupReward]) -> "Baselines":
        """Return these baselines. Before the first batch, the overall mean starts at that batch's
        mean: a baseline of 0 would push all its answers in one direction."""
        if self.overall.rewards or not batch:
            return self
        mean = math.fsum(group.reward for group in batch) / len(batch)
        return Baselines(Mean(mean, 0), self.keys)

    def of(self, key: str) -> float:
        """Return the baseline for this key: its mean, or the overall mean for a new key."""
        return self.keys.get(key, self.overall).value

    def after(self, batch: Iterable[GroupReward], decay: float) -> "Baselines":
        """Return the baselines with the rewards of `batch` added, in the order of its tasks. A new
        key starts at the overall mean, which counts as one of its rewards."""
        overall, keys = self.overall, dict(self.keys)
        for key, reward in batch:
            if key:
                before = keys.pop(key, Mean(self.overall.value, 1))
                keys[key] = before.with_reward(reward, decay)
            overall = overall.with_reward(reward, decay)
        for key in list(keys)[: max(0, len(keys) - MOST_KEYS)]:
            del keys[key]
        return Baselines(overall, keys)

    def metrics(self, batch: Sequence[GroupReward]) -> dict[str, float]:
        count = max(len(batch), 1)
        return {
            "baseline/mean": math.fsum(self.of(group.key) for group in batch) / count,
            "baseline/known_keys": sum(group.key in self.keys for group in batch) / count,
        }
