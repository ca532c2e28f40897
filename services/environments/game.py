"""The loop of an environment with `reset` and `step`: observation, answer, observation, answer."""

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.environments.playing import EnvironmentFailed, Message, PlayedEpisode
from services.environments.policy import ContextFull, Policy


@dataclass
class GameStep:
    """What the environment says after a reset or an action."""

    messages: list[Message] = field(default_factory=list)
    """What the policy reads next."""
    done: bool = False
    reward: Any = None
    components: Any = None


class Game(Protocol):
    """One episode."""

    tools: list[dict[str, Any]]
    """Of the OpenAI API; empty: answers are text."""

    async def reset(self) -> GameStep:
        """Begin. Raises EnvironmentFailed."""

    async def step(self, answer: Message) -> GameStep:
        """Act on the policy's answer. Raises EnvironmentFailed."""


async def played(
    game: Game, policy: Policy, prompt: str | list[Message], turns: int
) -> PlayedEpisode:
    """The episode, of at most so many turns. One that ends for want of turns or context has earned
    what its steps have earned so far. Raises EnvironmentFailed."""
    found = PlayedEpisode()
    step = await game.reset()
    found.messages = opening(prompt, step.messages)
    found.earn(step.reward, step.components)
    for turn in range(turns):
        if step.done:
            break
        try:
            answer = await policy.answer(found.messages, game.tools)
        except ContextFull as full:
            if not turn:
                raise EnvironmentFailed(str(full)) from full
            break
        found.messages.append(answer)
        step = await game.step(answer)
        found.earn(step.reward, step.components)
        found.messages += step.messages
    return found


def opening(prompt: str | list[Message], observed: list[Message]) -> list[Message]:
    """The first request: the row's prompt, and what the environment shows, in one message where
    both are the user's."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if observed and asked and asked[-1].get("role") == observed[0]["role"] == "user":
        last, first = asked.pop(), observed[0]
        both = [text for text in (last.get("content"), first["content"]) if text]
        observed = [{**first, "content": "\n\n".join(map(str, both))}, *observed[1:]]
    return asked + observed


def text_of(value: Any) -> str:
    """An observation as the policy reads it: text, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def user_messages(text: str) -> list[Message]:
    """`text` as the user's message; none for an empty text."""
    return [{"role": "user", "content": text}] if text else []
