"""Episode types: from one prompt to finished completions, in one turn or several.

An episode takes and returns token ids. It never tokenizes sampled text again; tokens that it adds
(tool output, forced tokens) have loss mask 0 and log-probability 0. A package offers its own types
through the entry-point group `headrace.episodes`. Imports `rollout.vllm` and `rollout.tools`, never
`rollout.work`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rollout.rewards.client import RewardClient
from rollout.vllm.expert_routing import Experts
from rollout.vllm.model_files import TokenizerLike
from rollout.vllm.response import Sample, Span
from services.contracts.config.episodes import (
    Calculator,
    OwnEpisode,
    SingleTurn,
    Tools,
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
    prefill: str = ""
    """The beginning of `text` that the tokens before it already have, such as `<think>`; default
    without a `text`: what the prompt's tokens have."""
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
            from rollout.episodes import own_episode

            return own_episode.load(config)
