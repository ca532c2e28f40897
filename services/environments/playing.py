"""The interface of all environments: a row and a session in, a reward and a transcript out."""

import json
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

Message = dict[str, Any]


class EnvironmentFailed(Exception):
    """An episode without a reward: its session is not trained. The text says why."""


class NoEnvironment(ValueError):
    """The environment cannot be used at all. The text says why, and the way out."""


@dataclass
class PlayedEpisode:
    """An episode that came to its end."""

    rewards: list[float] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    """All messages, for the log."""

    def earn(self, reward: Any, components: Any = None) -> None:
        """Add the reward of one step; None adds nothing. Raises EnvironmentFailed."""
        if components:
            if not isinstance(components, Mapping):
                raise EnvironmentFailed(f"the environment's components are no object: {components}")
            for name, value in components.items():
                self.components[name] = self.components.get(name, 0.0) + number(value, name)
        elif reward is not None:
            self.rewards.append(number(reward, "reward"))

    @property
    def reward(self) -> dict[str, Any]:
        """The reward in the form of the gateway's API. Raises EnvironmentFailed if no step gave a
        reward."""
        total = math.fsum(self.rewards)
        if self.components:
            steps = {"reward": total} if self.rewards else {}
            return {"components": self.components | steps}
        if not self.rewards:
            raise EnvironmentFailed("the environment gave no reward before the episode ended")
        return {"reward": total}

    @property
    def transcript(self) -> str:
        """One line of JSON for each message."""
        return "\n".join(json.dumps(message, ensure_ascii=False) for message in self.messages)


class Environment(Protocol):
    """Plays one episode a call. The caller makes several calls at once, in one event loop."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Hold what all episodes share. Raises NoEnvironment."""

    async def play(self, group: Mapping[str, Any], session: Mapping[str, Any]) -> PlayedEpisode:
        """Play one episode on the group's row, in the session. Raises EnvironmentFailed."""


def number(value: Any, name: str) -> float:
    """Return a reward as a float. Raises EnvironmentFailed unless it is a finite number."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise EnvironmentFailed(f"the environment's {name} is no finite number: {value!r:.100}")


def require(library: str) -> None:
    """Raise NoEnvironment if the library is not installed here."""
    if find_spec(library) is None:
        raise NoEnvironment(
            f"the library {library} is not installed here: pip install 'headrace-server[{library}]'"
        )
