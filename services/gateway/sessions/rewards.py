"""Checks the reward that a client gives a session. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from services.contracts.scores import MOST_REWARD, is_reward
from services.contracts.sessions import Reward
from services.gateway.openai.requests import refused

MOST_COMPONENTS, LONGEST_NAME = 64, 100
"""Limits of a reward: each component becomes a metric of the run."""
NUMBER = f"must be a number from {-MOST_REWARD:g} to {MOST_REWARD:g}"


def reward_of(body: Mapping[str, Any]) -> Reward:
    """Parse a session's reward: a number, or named components whose sum is the reward, or null with
    the reason why the reward is missing."""
    if unknown := sorted(body.keys() - {"reward", "components", "error"}):
        raise refused(unknown[0][:100], "is unknown: send reward, components or error")
    components = body.get("components") or {}
    if not isinstance(components, dict):
        raise refused("components", "must be an object of numbers by name")
    if len(components) > MOST_COMPONENTS:
        raise refused("components", f"has {len(components)}: send at most {MOST_COMPONENTS}")
    for name, value in components.items():
        if len(name) > LONGEST_NAME:
            raise refused(
                f"components.{name[:50]}…", f"a name has at most {LONGEST_NAME} characters"
            )
        if not is_reward(value):
            raise refused(f"components.{name}"[:200], NUMBER)
    reward, error = body.get("reward"), body.get("error") or ""
    if reward is None and components:
        reward = math.fsum(components.values())
        if not is_reward(reward):
            raise refused("components", f"the sum {reward:g} {NUMBER}")
    if reward is not None and not is_reward(reward):
        raise refused("reward", NUMBER)
    if reward is None and not error:
        raise refused("reward", "must be a number, or null with an `error` that says why")
    if not isinstance(error, str):
        raise refused("error", "must be a text")
    numbers = {name: float(value) for name, value in components.items()}
    number = None if reward is None else float(reward)
    return Reward(reward=number, components=numbers, error=error[:1000])
