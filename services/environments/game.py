"""The loop of an environment with `reset` and `step`: observation, answer, observation, answer."""

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.environments.playing import EnvironmentFailed, Message, PlayedEpisode
from services.environments.policy import ContextFull, Policy


@dataclass
class GameStep:
    """The environment's reply to a reset or an action."""

    messages: list[Message] = field(default_factory=list)
    """The next messages that the policy reads."""
    done: bool = False
    reward: Any = None
    components: Any = None


class Game(Protocol):
    """One episode of an environment with `reset` and `step`."""

    tools: list[dict[str, Any]]
    """Tools in the form of the OpenAI API. Without tools, answers are text."""

    async def reset(self) -> GameStep:
        """Begin the episode. Raises EnvironmentFailed."""

    async def step(self, answer: Message) -> GameStep:
        """Act on the policy's answer. Raises EnvironmentFailed."""


async def played(
    game: Game, policy: Policy, prompt: str | list[Message], turns: int
) -> PlayedEpisode:
    """Play an episode of at most `turns` turns. An episode that runs out of turns or context keeps
    the reward of its steps so far. Raises EnvironmentFailed."""
    episode = PlayedEpisode()
    step = await game.reset()
    episode.messages = opening(prompt, step.messages)
    episode.earn(step.reward, step.components)
    for turn in range(turns):
        if step.done:
            break
        try:
            answer = await policy.answer(episode.messages, game.tools)
        except ContextFull as full:
            if not turn:
                raise EnvironmentFailed(str(full)) from full
            break
        episode.messages.append(answer)
        step = await game.step(answer)
        episode.earn(step.reward, step.components)
        episode.messages += step.messages
    return episode


def opening(prompt: str | list[Message], observed: list[Message]) -> list[Message]:
    """Return the first request: the row's prompt and the first observation, merged if both are the
    user's."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if observed and asked and asked[-1].get("role") == observed[0]["role"] == "user":
        last, first = asked.pop(), observed[0]
        both = [text for text in (last.get("content"), first["content"]) if text]
        observed = [{**first, "content": "\n\n".join(map(str, both))}, *observed[1:]]
    return asked + observed


def text_of(value: Any) -> str:
    """Return an observation as the policy reads it: text, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def user_messages(text: str) -> list[Message]:
    """Return `text` as the user's message, or an empty list for an empty text."""
    return [{"role": "user", "content": text}] if text else []
