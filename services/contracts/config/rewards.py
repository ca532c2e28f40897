"""The components of a run's reward: verifiers, weights, clips, gates."""

import json
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from services.contracts.config.base import Section

MOST_REWARDS = 256
"""Components of one reward."""


class Gate(Section):
    """A condition on another component of the reward."""

    component: str
    """Name of an earlier reward."""
    at_least: float
    """Its verifier's reward, before clip and weight, must be at least this."""


class RewardComponent(Section):
    """One component of the reward: a verifier and its weight."""

    verifier: str
    """Name of a verifier of the reward service."""
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.#-]{1,64}$")
    """Name for gates and metrics; default: the verifier's name, numbered if it is used more than
    once (`math`, `math#2`)."""
    weight: float = 1.0
    """The reward is the weighted sum over components."""
    clip: tuple[float, float] | None = None
    """Clip the verifier's reward to [least, most], before the weight."""
    only_if: Gate | None = None
    """Score only samples for which another component was high enough; others get 0."""
    dense: Literal["values", "cumulative"] | None = None
    """For verifiers that score parts of an answer: reward each part at its end, and only the rest
    at the answer's end. values: a part earns its score. cumulative: a score is that of the answer
    up to there, and a part earns the difference to the score before. Default: the whole reward at
    the end. Needs an advantage with rewards per token (`global_whiten`, `gae`)."""
    params: dict[str, Any] = {}
    """The verifier's parameters."""

    def clipped(self, value: float) -> float:
        """The verifier's reward `value` after `clip`."""
        if self.clip is None:
            return value
        low, high = self.clip
        return min(max(value, low), high)

    @field_validator("params")
    @classmethod
    def _params(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(params, allow_nan=False)
        except ValueError:
            raise ValueError("params hold NaN or Infinity, which JSON cannot carry") from None
        return params

    @model_validator(mode="after")
    def _clip(self) -> "RewardComponent":
        if self.clip is not None and self.clip[0] > self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} is not [least, most]")
        return self


def named(rewards: list[RewardComponent]) -> dict[str, RewardComponent]:
    """Rewards by name, in their order. Raises ValueError where two have the same."""
    uses: dict[str, int] = {}
    by_name: dict[str, RewardComponent] = {}
    for reward in rewards:
        name = reward.name
        if name is None:
            count = uses[reward.verifier] = uses.get(reward.verifier, 0) + 1
            name = reward.verifier if count == 1 else f"{reward.verifier}#{count}"
        if name in by_name:
            raise ValueError(f"two rewards are called {name!r}: give one of them another name")
        by_name[name] = reward
    return by_name
