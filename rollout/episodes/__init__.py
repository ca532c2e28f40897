"""Episode types: from one prompt to finished completions, in one turn or several.

An episode takes and returns token ids. It never tokenizes sampled text again. Tokens that it adds
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
from rollout.vllm.client.expert_routing import Experts
from rollout.vllm.client.response import Sample, Span
from rollout.vllm.model_files import TokenizerLike
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
    """For each sampled token, the tokens that it was chosen from. Added tokens have an empty
    set."""
    text: str | None = None
    """The text for verifiers. Default: the tokens' text without special tokens."""
    prefill: str = ""
    """The beginning of `text` that stands in the tokens before it, such as `<think>`. Default
    without a `text`: the end of the prompt."""
    experts: Experts | None = None
    """`Sample.experts` from the prompt's first token on, for `algorithm.router.replay`. `extended`
    joins the routing of several turns."""
    reward: Reward | None = None
    """The reward that the episode gives. Default: the run's verifiers score the text.
    `Reward(error=…)` means that the reward is unknown, so the sample is not trained."""
    branches: list[Branch] = field(default_factory=list)
    """In an agent's session: the places where tokens do not continue the tokens before them."""
    turns: int = 0
    """Answers in an agent's session, or in an episode with tools."""

    @classmethod
    def of(cls, sample: Sample, loss_mask: npt.NDArray[np.bool_], **more: Any) -> "Completion":
        return cls(
            token_ids=sample.token_ids,
            loss_mask=loss_mask,
            logprobs=sample.logprobs,
            spans=sample.spans,
            finish_reason=sample.finish_reason,
            **{"sampling_mask": sample.sampling_mask, "experts": sample.experts} | more,
        )


class Sampler(Protocol):
    """The policy, for an episode."""

    @property
    def tokenizer(self) -> TokenizerLike: ...

    @property
    def ends(self) -> frozenset[int]:
        """End-of-sequence tokens."""

    def most_tokens(self, prompt_tokens: Sequence[int]) -> int:
        """Return the most tokens that a completion of this prompt may have, added tokens
        included."""

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """Sample `n` continuations of `token_ids` under the run's sampling options. They also end
        after the text `stop`, which stays in them; an interrupted request may continue beyond it.

        With `done` > 0 this continues completion `index` of the prompt (`n` is 1), which already
        has `done` tokens. They count towards its length, and the seed changes. After the group's
        deadline, or if no token fits, the sample is empty with the finish reason `deadline` or
        `length`.

        The finish reason `deadline` ends the trajectory. Raises PastDeadline, which ends the whole
        group, if the deadline comes before a first token, and RequestRefused if the context is
        full.
        """

    async def message(
        self, token_ids: Sequence[int], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the sampled `token_ids` as an assistant's message: its `content`, and the calls of
        `tools` (both in OpenAI's format) that vLLM's parser finds, if the run has one."""


@runtime_checkable
class Episode(Protocol):
    """One way to get from a prompt to completions."""

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        """Return `n` completions of the prompt. They may share turns."""


@runtime_checkable
class DescribesTools(Protocol):
    async def described(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's format."""


class SingleTurnEpisode:
    """One prompt, one answer. Samples all completions in one request, so that they share the
    prompt's prefill. Every sampled token is trained."""

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        return [
            Completion.of(sample, np.ones(len(sample.token_ids), dtype=np.bool_))
            for sample in await sampler.sample(prompt_tokens, n)
        ]


class UnusableEpisode(ValueError):
    """The episode type is not installed on this worker, or fails with the run's tokenizer."""


def load_episode(
    config: SingleTurn | Calculator | Tools | OwnEpisode,
    tokenizer: TokenizerLike,
    servers: Mapping[str, ToolServer],
    rewards: RewardClient,
) -> Episode:
    """Return the episode, ready to run. `servers` are the operator's MCP servers; `rewards` runs
    Python for its tools. Raises UnusableEpisode."""
    match config:
        case SingleTurn():
            return SingleTurnEpisode()
        case Calculator():
            from rollout.episodes import calculator

            return calculator.CalculatorEpisode(config, tokenizer)
        case Tools():
            from rollout.episodes import tools_episode as tools
            from rollout.tools.toolbox import RunTools

            return tools.ToolsEpisode(RunTools(config, servers, rewards), tokenizer)
        case OwnEpisode():
            from rollout.episodes import own_episode

            return own_episode.load(config)
