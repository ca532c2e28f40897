"""Episode types: from one prompt to finished completions, by whatever turns lie between.

An episode gets token ids and gives token ids. It never re-tokenizes what the policy sampled;
tokens that it adds itself (tool output, forced tokens) carry loss mask 0 and log-probability 0.
Own types are classes in the entry-point group `headrace.episodes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rollout.prompts import TokenizerLike
from rollout.routing import Experts
from rollout.samples import Sample, Span
from services.contracts.config.episodes import (
    GROUP,
    Calculator,
    OwnEpisode,
    SingleTurn,
    unknown_episode,
)
from services.contracts.dataset import Row
from services.contracts.kept import Kept


@dataclass
class Completion:
    """What follows the prompt in one trajectory. Arrays have one entry per token.

    `spans` cover the sampled tokens; tokens the episode added belong to no version.
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    spans: list[Span]
    finish_reason: str
    kept: Kept | None = None
    """What each token was chosen from (`Sample.kept`), nothing for those the episode added."""
    text: str | None = None
    """What verifiers read; default: all its tokens but special ones."""
    experts: Experts | None = None
    """`Sample.experts`, from the first token of the prompt on (`rollout.routing.extended` joins
    those of several turns): what `algorithm.router.replay` needs."""


class Sampler(Protocol):
    """The policy, as an episode sees it."""

    @property
    def tokenizer(self) -> TokenizerLike:
        """The run's tokenizer."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that mean end of sequence."""
        ...

    def room(self, prompt_tokens: Sequence[int]) -> int:
        """Most tokens that a completion of this prompt may have, added ones included."""
        ...

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """`n` continuations of `token_ids`, under the run's sampling options. They also end behind
        the text `stop`, which stays in them; where a request was interrupted, they may go on
        beyond it.

        With `done` > 0 this goes on with completion `index` of the prompt (`n` is 1), which has so
        many tokens: they count to its length, and its random numbers are not those of before. Past
        the group's deadline, and where no token is left to sample, such a sample is empty, with
        the finish reason `deadline` or `length`.

        A finish reason `deadline` ends the trajectory. Raises rollout.policy.PastDeadline, which
        gives the whole group up, where it comes before a first token, and RequestRefused where the
        context has no room left.
        """
        ...


@runtime_checkable
class Episode(Protocol):
    """One way to get from a prompt to completions."""

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        """`n` completions of the prompt, each on its own or sharing turns."""
        ...


def checked(completions: list[Completion], n: int) -> list[Completion]:
    """`completions`, which an episode has returned where `n` were asked for. Raises ValueError for
    what would be trained wrongly, and nobody would see."""
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
                "what the policy did not sample cannot be trained"
            )
    return completions


class UnusableEpisode(ValueError):
    """No such episode type is installed here, or it cannot be used with the run's tokenizer."""


def load_episode(config: SingleTurn | Calculator | OwnEpisode, tokenizer: TokenizerLike) -> Episode:
    """The episode, ready to run. Raises UnusableEpisode naming the way out."""
    match config:
        case SingleTurn():
            from rollout.episodes import single_turn

            return single_turn.SingleTurn()
        case Calculator():
            from rollout.episodes import calculator

            return calculator.CalculatorEpisode(config, tokenizer)
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
