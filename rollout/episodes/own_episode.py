"""Loads episode types of other packages, and checks what they return."""

from importlib.metadata import entry_points
from typing import Any

import numpy as np

from rollout.episodes import Completion, Episode, Reward, UnusableEpisode
from services.contracts.config.episodes import GROUP, OwnEpisode, unknown_episode
from services.contracts.scores import MOST_REWARD, is_reward


def load(config: OwnEpisode) -> Episode:
    """Return the installed episode type of that name. Raises UnusableEpisode."""
    provided = {entry.name: entry for entry in entry_points(group=GROUP)}
    if config.name not in provided:
        raise UnusableEpisode(f"rollout.episode {unknown_episode(config.name, provided)}")
    try:
        episode = provided[config.name].load()(**config.options)
    except TypeError as error:
        raise UnusableEpisode(f"rollout.episode.options: {error}") from error
    if not isinstance(episode, Episode):
        raise UnusableEpisode(
            f"{provided[config.name].value} has no method `run`: not an episode type"
        )
    return episode


def checked(completions: list[Completion], n: int) -> list[Completion]:
    """Return the episode's `completions`. Raises ValueError unless there are `n`, and for mistakes
    that would otherwise be trained unnoticed."""
    if len(completions) != n:
        raise ValueError(f"the episode type returned {len(completions)} completions, not {n}")
    for completion in completions:
        sampled = np.zeros(len(completion.token_ids), dtype=np.bool_)
        if not len(sampled) == len(completion.loss_mask) == len(completion.logprobs):
            raise ValueError(
                f"the episode type returned {len(sampled)} tokens, a loss_mask of "
                f"{len(completion.loss_mask)} and {len(completion.logprobs)} logprobs"
            )
        for span in completion.spans:
            sampled[span.start : span.end] = True
        if bool((completion.loss_mask & ~sampled).any()):
            raise ValueError(
                "the episode type returned a loss_mask that is true on tokens outside all spans: "
                "only tokens that the policy sampled can be trained"
            )
        if completion.reward is not None and not _is_reward(completion.reward):
            raise ValueError(
                f"the episode type returned the reward {completion.reward!r}: return "
                f"Reward(reward=NUMBER), at most {MOST_REWARD:g}, with `components` by name if "
                "there are any, or Reward(error=WHY) for a sample whose reward is not known"
            )
    return completions


def _is_reward(reward: object) -> bool:
    if not isinstance(reward, Reward):
        return False
    numbers: list[Any] = [*reward.components.values()] + (
        [] if reward.reward is None else [reward.reward]
    )
    # True counts as 1, as in Python.
    return all(isinstance(number, bool) or is_reward(number) for number in numbers)
