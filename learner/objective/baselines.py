"""Running means of rewards by prompt key: what `running_mean` compares a sample with. Pure.

They are part of a run's state: each batch is compared with the means of the batches before it, and
then added in the order of its tasks. A learner that is started again computes the same ones.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

MOST_KEYS = 100_000
"""Keys that are remembered: those trained last. A checkpoint has some 60 bytes of each."""


class Mean(NamedTuple):
    """A running mean."""

    value: float
    rewards: int
    """How many are in it."""

    def with_reward(self, reward: float, decay: float) -> "Mean":
        """It and one more. The first rewards count alike, later ones 1 − `decay` each."""
        step = max(1 / (self.rewards + 1), 1 - decay)
        return Mean(self.value + step * (reward - self.value), self.rewards + 1)


class Earned(NamedTuple):
    """What a group has earned."""

    key: str
    """'': it has no key."""
    reward: float
    """The mean of its samples, after shaping."""


@dataclass(frozen=True)
class Baselines:
    """The means after some batches."""

    overall: Mean = field(default_factory=partial(Mean, 0.0, 0))
    """Of all rewards, whatever their keys."""
    keys: dict[str, Mean] = field(default_factory=dict)
    """Those trained last come last."""

    def begun(self, batch: Sequence[Earned]) -> "Baselines":
        """These, and before the first batch that batch's mean as the one of all rewards: a baseline
        of 0 would push all of its answers one way."""
        if self.overall.rewards or not batch:
            return self
        mean = math.fsum(one.reward for one in batch) / len(batch)
        return Baselines(Mean(mean, 0), self.keys)

    def of(self, key: str) -> float:
        """What a reward of this key is compared with: its mean, or for a new key that of all."""
        return self.keys.get(key, self.overall).value

    def after(self, batch: Iterable[Earned], decay: float) -> "Baselines":
        """With the rewards of a batch, in the order of its tasks. A new key begins at what it was
        compared with, which counts as one of its rewards."""
        overall, keys = self.overall, dict(self.keys)
        for key, reward in batch:
            if key:
                before = keys.pop(key, Mean(self.overall.value, 1))
                keys[key] = before.with_reward(reward, decay)
            overall = overall.with_reward(reward, decay)
        for key in list(keys)[: max(0, len(keys) - MOST_KEYS)]:
            del keys[key]
        return Baselines(overall, keys)

    def metrics(self, batch: Sequence[Earned]) -> dict[str, float]:
        """Of a batch that is compared with these."""
        count = max(len(batch), 1)
        return {
            "baseline/mean": math.fsum(self.of(one.key) for one in batch) / count,
            "baseline/known_keys": sum(one.key in self.keys for one in batch) / count,
        }
