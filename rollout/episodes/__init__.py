"""Episode types: from one prompt to finished completions, in one turn or several.

An episode takes and returns token ids. It never tokenizes sampled text again; tokens that it adds
(tool output, forced tokens) have loss mask 0 and log-probability 0. A package offers its own types
through the entry-point group `headrace.episodes`. Imports `rollout.vllm` and `rollout.tools`, never
`rollout.work`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rollout.rewards.client import RewardClient
from rollout.vllm.expert_routing import Experts
from rollout.vllm.model_files import TokenizerLike
from rollout.vllm.response import Sample, Span
from services.contracts.config.episodes import (
    GROUP,
    Calculator,
    OwnEpisode,
    SingleTurn,
    Tools,
    unknown_episode,
)
from services.contracts.groups.branches import Branch
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.rows.dataset import Row
from services.contracts.sessions import Reward as Reward
from services.runtime.tool_servers import ToolServer


@dataclass
class Completion:
    """The tokens after the prompt in one trajectory. Arrays have one entry per token.

    `spans` cover the sampled tokens; added tokens belong to no version.
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    spans: list[Span]
    finish_reason: str
    sampling_mask: SamplingMask | None = None
    """The tokens that each was chosen from; none for added tokens."""
    text: str | None = None
    """The text for verifiers; default: its tokens without special ones."""
    experts: Experts | None = None
    """`Sample.experts` from the prompt's first token on, for `algorithm.router.replay`; `extended`
    joins those of several turns."""
    reward: Reward | None = None
    """What the episode says that it has earned; default: the run's verifiers score its text. With
    `Reward(error=…)` it has no reward, and is not trained."""
    branches: list[Branch] = field(default_factory=list)
    """Where the tokens do not continue those before them, in an agent's session."""
    turns: int = 0
    """Of an agent's session, or of an episode with tools."""


class Sampler(Protocol):
    """The policy, for an episode."""

    @property
    def tokenizer(self) -> TokenizerLike: ...

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that mean end of sequence."""

    def room(self, prompt_tokens: Sequence[int]) -> int:
        """Most tokens that a completion of this prompt may have, added ones included."""

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """`n` continuations of `token_ids`, under the run's sampling options. They also end after
        the text `stop`, which stays in them; an interrupted request may go on beyond it.

        With `done` > 0 this continues completion `index` of the prompt (`n` is 1), which has `done`
        tokens: they count towards its length, and it gets new random numbers. After the group's
        deadline, or without room for a token, the sample is empty, with the finish reason
        `deadline` or `length`.

        A finish reason `deadline` ends the trajectory. Raises PastDeadline, which ends the whole
        group, if the deadline comes before a first token, and RequestRefused if the context is
        full.
        """

    async def message(
        self, token_ids: Sequence[int], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The sampled `token_ids` as an assistant's message: `content`, and the calls of `tools`
        (both in OpenAI's form) that vLLM's parser finds, if the run has one."""


@runtime_checkable
class Episode(Protocol):
    """One way to get from a prompt to completions."""

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        """`n` completions of the prompt, each on its own or sharing turns."""


@runtime_checkable
class DescribesTools(Protocol):
    """An episode whose prompts describe tools."""

    async def described(self) -> list[dict[str, Any]]:
        """The tools, in OpenAI's form."""


def checked(completions: list[Completion], n: int) -> list[Completion]:
    """The `completions` of an episode, which should be `n`. Raises ValueError for mistakes that
    would be trained without anyone noticing."""
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
                "Reward(reward=NUMBER), with `components` by name if there are any, or "
                "Reward(error=WHY) for a sample whose reward is not known"
            )
    return completions


def _is_reward(given: object) -> bool:
    if not isinstance(given, Reward):
        return False
    numbers: list[Any] = [*given.components.values()] + (
        [] if given.reward is None else [given.reward]
    )
    return all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)


class UnusableEpisode(ValueError):
    """The episode type is not installed here, or does not work with the run's tokenizer."""


def load_episode(
    config: SingleTurn | Calculator | Tools | OwnEpisode,
    tokenizer: TokenizerLike,
    servers: Mapping[str, ToolServer],
    rewards: RewardClient,
) -> Episode:
    """The episode, ready to run. `servers`: MCP servers that the operator has named; `rewards` runs
    Python for its tools. Raises UnusableEpisode."""
    match config:
        case SingleTurn():
            from rollout.episodes import single_turn

            return single_turn.SingleTurn()
        case Calculator():
            from rollout.episodes import calculator

            return calculator.CalculatorEpisode(config, tokenizer)
        case Tools():
            from rollout.episodes import tools
            from rollout.tools.toolbox import RunTools

            return tools.ToolsEpisode(RunTools(config, servers, rewards), tokenizer)
        case OwnEpisode():
            return _own(config)


def _own(config: OwnEpisode) -> Episode:
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
