"""One leased draw, from its row to a completed group. Knows nothing of the other groups.

Ends in exactly one of: completed, dropped with a reason, given back. A verifier that broke is
never a reward; a sample that was not sampled by a published version is never sent.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from rollout.assembly import Origin, assemble, oldest_tag
from rollout.combining import SampleScore, combine, due, score_items
from rollout.continuing import DEADLINE, mixed, not_sampled, rest_of
from rollout.episodes import Completion, Episode, checked
from rollout.follower import Follower
from rollout.policy import PastDeadline, PolicyClient
from rollout.prompts import TokenizerLike, room
from rollout.samples import Sample, sampling_params, stopping_behind
from rollout.scoring import RewardClient
from rollout.selection import chosen
from services.contracts.config.algorithm import Algorithm
from services.contracts.config.rollout import Sampling
from services.contracts.config.run import RLConfig
from services.contracts.dataset import Row
from services.contracts.rendering import compose, render
from services.contracts.scores import ScoreResult
from services.contracts.trajectory import TrajectoryGroup
from services.contracts.weights import WeightManifest


@dataclass
class RunContext:
    """What is the same for all groups of one run on one server."""

    run: str
    worker: str
    config: RLConfig
    policy: PolicyClient
    follower: Follower
    rewards: RewardClient
    tokenizer: TokenizerLike
    episode: Episode
    eos: list[int]
    context: int
    """Longest prompt + completion, in tokens."""
    vocabulary: int | None = None
    """Of the model, where the server has to be asked what tokens were chosen from (`support`)."""
    routing_bytes: int = 0
    """Of each token on the wire, where expert routing is replayed."""


class VerifierBroke(RuntimeError):
    """No sample of a group could be scored; the draw deserves another attempt."""


class PromptSampler:
    """`episodes.Sampler` for one draw: the run's options, its seed, the room that is left."""

    def __init__(
        self,
        context: RunContext,
        sampling: Sampling,
        seed: int | None,
        cut: asyncio.Event | None = None,
    ) -> None:
        """`cut` is set when the group is past its deadline."""
        self.tokenizer = context.tokenizer
        self.ends = frozenset(context.eos)
        self._context = context
        self._sampling = sampling
        self._seed = seed
        self._cut = cut
        self._own_tokens = context.tokenizer.get_added_vocab()

    def room(self, prompt_tokens: Sequence[int]) -> int:
        """As `episodes.Sampler.room`. Raises PromptTooLong where there is none."""
        return min(self._sampling.max_tokens, room(list(prompt_tokens), self._context.context))

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """As `episodes.Sampler.sample`. Raises PromptTooLong where the context is full."""
        asked = list(token_ids)
        if done and self.room(asked[: len(asked) - done]) <= done:
            return [not_sampled([], "length")]
        left = room(asked, self._context.context)
        vocabulary = self._context.vocabulary
        params = sampling_params(
            self._sampling, self._context.eos, left + done, self._seed, vocabulary
        )
        if done:
            params = rest_of(params, index, done)
        if stop:
            params = stopping_behind(params, stop, self._own_tokens)
        try:
            if self._cut is not None and self._cut.is_set():
                raise PastDeadline("the group was cut off before its next turn")
            return await self._context.policy.generate(asked, n, params, self._cut)
        except PastDeadline:
            if not done:
                raise
            return [not_sampled([], DEADLINE)]


def draw_seed(seed: int | None, draw: int) -> int | None:
    """The seed of a draw's first sample (vLLM adds the sample's index), or None for none.

    63 bits less room for the indices, so that no draw's seeds run into the next one's by order.
    """
    if seed is None:
        return None
    return mixed(seed, draw)


@dataclass
class Sampled:
    """A prompt's completions and their scores."""

    prompt_tokens: list[int]
    completions: list[Completion]
    scores: list[SampleScore] = field(default_factory=list)
    generated_at: float = 0.0
    scored_at: float = 0.0

    @property
    def rewards(self) -> list[float | None]:
        """Of each completion; None: a verifier broke."""
        return [score.reward for score in self.scores]

    def mean_reward(self, row: int) -> float:
        """Over the completions that have one. Raises VerifierBroke, naming dataset row `row`, where
        none has."""
        known = [reward for reward in self.rewards if reward is not None]
        if not known:
            why = self.scores[0].detail or f"dataset row {row}: every verifier reported an error"
            raise VerifierBroke(why)
        return fmean(known)

    def trained(self, algorithm: Algorithm) -> "Sampled":
        """The part of it that `best_of` chooses; all of it without."""
        if algorithm.best_of is None:
            return self
        lengths = [len(completion.token_ids) for completion in self.completions]
        indices = chosen(algorithm.best_of, self.rewards, lengths, algorithm.samples_per_prompt)
        return replace(
            self,
            completions=[self.completions[i] for i in indices],
            scores=[self.scores[i] for i in indices],
        )


async def sample_and_score(
    context: RunContext,
    index: int,
    row: Row,
    sampling: Sampling,
    n: int,
    seed: int | None,
    generated: Callable[[], None],
    deadline: float | None = None,
) -> Sampled:
    """`n` scored completions of `row`, which is row `index` of its dataset; calls `generated`
    once the policy is done with them. What the policy has not done by `deadline` (the event
    loop's clock) is cut off, or not wanted any more, as the run's config says.

    Raises PastDeadline, PromptTooLong, ValueError (a prompt that cannot be rendered, or an episode
    that returns what it may not), RequestRefused, VLLMUnavailable, ScoringRefused.
    """
    asked = compose(row, context.config.data)
    prompt_tokens = render(asked, context.config.data, context.tokenizer)
    room(prompt_tokens, context.context)
    try:
        async with deadline_of(context.config.rollout.straggler, deadline) as cut:
            sampler = PromptSampler(context, sampling, seed, cut)
            found = await context.episode.run(row, prompt_tokens, n, sampler)
    finally:
        generated()
    completions = checked(found, n)
    sampled = Sampled(prompt_tokens, completions, generated_at=time.time())
    texts = [
        text_of(context.tokenizer, one.token_ids) if one.text is None else one.text
        for one in completions
    ]
    sampled.scores = await _scores(context, asked, row, index, texts)
    sampled.scored_at = time.time()
    return sampled


def text_of(tokenizer: TokenizerLike, token_ids: Any) -> str:
    """What verifiers see of tokens."""
    (text,) = tokenizer.batch_decode([token_ids], skip_special_tokens=True)
    return text


async def _scores(
    context: RunContext,
    asked: str | list[dict[str, Any]],
    row: Row,
    index: int,
    texts: Sequence[str],
) -> list[SampleScore]:
    """Of each of `texts`. One request to the reward service, and one more for each gate that waits
    for another's. Raises ScoringRefused."""
    rewards = context.config.components
    results: list[dict[str, ScoreResult]] = [{} for _ in texts]
    while wanted := due(rewards, results):
        items = score_items(rewards, asked, row.answer, texts, index, wanted)
        for one, result in zip(wanted, await context.rewards.score(items), strict=True):
            results[one.sample][one.component] = result
    return [combine(rewards, known) for known in results]


@asynccontextmanager
async def deadline_of(
    straggler: str, deadline: float | None
) -> AsyncIterator[asyncio.Event | None]:
    """Past `deadline` set the event that the block is given (`complete`), or end the block with
    PastDeadline (`give_back`)."""
    if deadline is None:
        yield None
    elif straggler == "complete":
        cut = asyncio.Event()
        timer = asyncio.get_running_loop().call_at(deadline, cut.set)
        try:
            yield cut
        finally:
            timer.cancel()
    else:
        try:
            async with asyncio.timeout_at(deadline) as limit:
                yield None
        except TimeoutError as error:
            if limit.expired():
                raise PastDeadline("the group was not done by its deadline") from error
            raise


def to_group(
    context: RunContext,
    sampled: Sampled,
    *,
    draw: int,
    attempt: str,
    row: int,
    live: WeightManifest,
    leased_at: float,
    sampled_reward: float | None = None,
) -> tuple[TrajectoryGroup, str]:
    """The group on the wire, and the version tag of its oldest token. `live` is the version that
    the lease was granted for, `sampled_reward` the mean over all completions of the prompt where
    these are not all."""
    origin = Origin(
        run=context.run,
        draw=draw,
        attempt=attempt,
        worker=context.worker,
        row=row,
        lineage=live.lineage,
        leased_at=leased_at,
        generated_at=sampled.generated_at,
        scored_at=sampled.scored_at,
    )
    dense = any(reward.dense for reward in context.config.components.values())
    if dense and any(c.text is not None for c in sampled.completions):
        raise ValueError(
            "the episode type shows verifiers a text of its own (Completion.text), so what parts "
            "of it earned cannot be given to tokens: leave rewards' dense out"
        )
    if context.config.sampling.cuts and any(c.kept is None for c in sampled.completions):
        raise ValueError(
            "the episode type does not hand on what tokens were chosen from (Sample.kept), without "
            "which nothing sampled with sampling.top_k can be trained"
        )
    group = assemble(
        origin,
        sampled.prompt_tokens,
        sampled.completions,
        sampled.scores,
        sampled_reward,
        partial(text_of, context.tokenizer) if dense else None,
        context.config.algorithm.router.replay,
    )
    oldest = oldest_tag(group.header.tags, live.tag, context.follower.forks)
    return group, oldest
