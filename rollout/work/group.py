"""Samples and scores one group, from a dataset row to its trajectories. Knows no other group.

A verifier that broke gives no reward. A sample of an unpublished version is never sent.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from rollout.episodes import Completion, DescribesTools, Episode
from rollout.episodes.own_episode import checked
from rollout.rewards.client import RewardClient
from rollout.rewards.combine import (
    AnswerText,
    SampleScore,
    combine,
    due,
    earned_score,
    score_items,
)
from rollout.text.answer_text import prefill, text_of
from rollout.text.chat_rendering import QUESTION
from rollout.text.model_folder import TokenizerLike, answer_tokens
from rollout.vllm.client.policy_client import PastDeadline, PolicyClient, RequestRefused
from rollout.vllm.client.response import Sample, sampling_params, stopping_after
from rollout.vllm.client.resume import DEADLINE, mixed, not_sampled, rest_of
from rollout.vllm.client.weight_loader import WeightLoader
from rollout.vllm.weights.weight_follower import WeightFollower
from rollout.vllm_plugin.wire import Parsed
from rollout.work.assembly import Origin, assemble, oldest_tag
from rollout.work.capacity import Sequences
from rollout.work.filtering import chosen
from rollout.work.long_prompts import rendered
from rollout.work.teacher import TeacherScorer
from services.contracts.config.data import PromptOptions
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import ReverseKL
from services.contracts.config.rewards import Reward
from services.contracts.config.rollout import Sampling
from services.contracts.config.run import RLConfig
from services.contracts.groups.sampled_answer import reference_text
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose
from services.contracts.scores import VERDICTS, ScoreResult, ScoreStatus
from services.contracts.sessions import Reward as Earned
from services.contracts.weights import WeightManifest
from services.payloads import Payloads
from services.runtime.tasks import end
from services.runtime.tool_servers import ToolServer


@dataclass
class RunContext:
    """Shared by all groups that one worker samples for one run."""

    run: str
    worker: str
    config: RLConfig
    policy: PolicyClient
    follower: WeightFollower
    rewards: RewardClient
    tokenizer: TokenizerLike
    episode: Episode | None
    """None: agents lead the episodes (`rollout.sessions`)."""
    eos: list[int]
    payloads: Payloads
    context: int
    """The longest prompt with its completion, in tokens."""
    sequences: Sequences
    """How many completions vLLM runs at once."""
    vocabulary: int | None = None
    """The model's vocabulary size, on a CPU only (`sampling_mask.request_params`)."""
    routing_bytes: int = 0
    """Bytes of one token's expert routing; 0 unless routing is replayed."""
    tool_servers: Mapping[str, ToolServer] = field(default_factory=dict)
    """MCP servers that this worker's operator has named."""
    teacher: TeacherScorer | None = None
    """The teacher, if it is a server. Any other teacher is a model of the learner."""
    evaluation_only: bool = False
    """Whether this worker only evaluates."""


STAND_IN = [{"role": "user", "content": QUESTION}]
"""Stands for the conversation before an answer: parsers read only the answer."""
UNREWARDED = "the episode gave no reward, and the run has no verifier (rewards)"


class VerifierBroke(RuntimeError):
    """No sample of a group could be scored."""


class PromptSampler:
    """`episodes.Sampler` for one task: applies the run's options, its seed, and the token
    limits."""

    def __init__(
        self,
        context: RunContext,
        sampling: Sampling,
        seed: int | None,
        expired: asyncio.Event | None = None,
    ) -> None:
        """`expired` is set at the group's deadline."""
        self.tokenizer = context.tokenizer
        self.ends = frozenset(context.eos)
        self._context = context
        self._sampling = sampling
        self._seed = seed
        self._expired = expired
        self._added_tokens = context.tokenizer.get_added_vocab()

    def room(self, prompt_tokens: Sequence[int]) -> int:
        """See `episodes.Sampler.room`. Raises PromptTooLong if no token is left."""
        return min(
            self._sampling.max_tokens, answer_tokens(list(prompt_tokens), self._context.context)
        )

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """See `episodes.Sampler.sample`. Raises PromptTooLong if the context is full."""
        prompt = list(token_ids)
        if done and self.room(prompt[: len(prompt) - done]) <= done:
            return [not_sampled([], "length")]
        tokens_left = answer_tokens(prompt, self._context.context)
        vocabulary = self._context.vocabulary
        params = sampling_params(
            self._sampling, self._context.eos, tokens_left + done, self._seed, vocabulary
        )
        if done:
            params = rest_of(params, index, done)
        if stop:
            params = stopping_after(params, stop, self._added_tokens)
        try:
            if self._expired is not None and self._expired.is_set():
                raise PastDeadline("the deadline came before the group's next turn")
            return await self._context.policy.generate(prompt, n, params, self._expired)
        except PastDeadline:
            if not done:
                raise
            return [not_sampled([], DEADLINE)]

    async def message(
        self, token_ids: Sequence[int], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """See `episodes.Sampler.message`. An answer that the parser cannot read becomes text.
        Raises VLLMUnavailable."""
        return await assistant_message(self._context, token_ids, STAND_IN, tools)


def task_seed(seed: int | None, task: int) -> int | None:
    """Return the seed of a task's first sample; vLLM adds the sample's index. None: no seed."""
    return None if seed is None else mixed(seed, task)


@dataclass
class Sampled:
    """A prompt's completions and their scores."""

    prompt_tokens: list[int]
    completions: list[Completion]
    scores: list[SampleScore] = field(default_factory=list)
    generated_at: float = 0.0
    scored_at: float = 0.0
    prompt_key: str | None = None
    """See GroupHeader. None: the key of the dataset row."""
    own: str | None = None
    """See GroupHeader."""
    reference: str = ""
    """See GroupHeader."""
    prompt_cut: int = 0
    """Tokens cut off the prompt (`data.long_prompts`)."""

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each completion. None: a verifier broke."""
        return [score.reward for score in self.scores]

    def mean_reward(self) -> float:
        """Return the mean of the known rewards. Raises VerifierBroke if every reward is missing."""
        known = [reward for reward in self.rewards if reward is not None]
        if not known:
            raise VerifierBroke(self.scores[0].detail or "every verifier reported an error")
        return fmean(known)

    def pass_rate(self) -> float:
        """Return the share of correct completions among those that a verifier judged. If verifiers
        only rate, return the mean reward, limited to 0..1."""
        judged = [score.status for score in self.scores if score.status in VERDICTS]
        if judged:
            return judged.count(ScoreStatus.CORRECT) / len(judged)
        return min(max(self.mean_reward(), 0.0), 1.0)

    def trained(self, algorithm: Algorithm) -> "Sampled":
        """Keep only the completions to train: those that `best_of` chooses, or all."""
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
    *,
    prompt_options: PromptOptions | None = None,
    rewards: Mapping[str, Reward] | None = None,
) -> Sampled:
    """Sample `n` completions of `row` (row `index` of its dataset) and score them.

    Calls `generated` once they are sampled. After `deadline` seconds the group is truncated or
    dropped, by `rollout.at_deadline`. `prompt_options` and `rewards` (by name) default to the run's
    config.

    Raises PastDeadline, PromptTooLong, ValueError (the prompt cannot be rendered, or the episode
    returned a wrong result), RequestRefused, VLLMUnavailable, ScoringRefused, ToolsAway.
    """
    assert context.episode is not None
    options = prompt_options or context.config.data
    prompt = compose(row, options)
    episode = context.episode
    tools = await episode.described() if isinstance(episode, DescribesTools) else None
    cuts = context.config.data.long_prompts == "cut"
    longest = max(context.context - sampling.max_tokens, 1) if cuts else None
    asked = rendered(prompt, options, context.tokenizer, tools, context.context, longest)
    prompt_tokens = asked.tokens
    try:
        at_deadline = context.config.rollout.at_deadline
        async with deadline_of(at_deadline, deadline, context.policy.weights) as expired:
            sampler = PromptSampler(context, sampling, seed, expired)
            completions = await episode.run(row, prompt_tokens, n, sampler)
    finally:
        generated()
    sampled = Sampled(
        prompt_tokens,
        checked(completions, n),
        generated_at=time.time(),
        reference=reference_text(row.answer),
        prompt_cut=asked.lost,
    )
    begun = prefill(context.tokenizer, prompt_tokens)
    answers = [
        AnswerText(text_of(context.tokenizer, completion.token_ids), begun)
        if completion.text is None
        else AnswerText(completion.text, completion.prefill)
        for completion in completions
        if completion.reward is None
    ]
    components = rewards or context.config.components
    verified = iter(await scores_of(context, components, prompt, row, index, answers))
    sampled.scores = [
        earned_score(completion.reward) if completion.reward else next(verified)
        for completion in completions
    ]
    sampled.scored_at = time.time()
    return sampled


async def assistant_message(
    context: RunContext,
    token_ids: Sequence[int],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    parallel_tool_calls: bool = True,
) -> dict[str, Any]:
    """Return the policy's answer to `messages` as an assistant's message, by vLLM's parsers if the
    run has any.

    An answer that they cannot read becomes text: the policy wrote it, and it is trained like any
    other answer. Without `parallel_tool_calls` only the first call is kept. Raises VLLMUnavailable.
    """
    ids = without_end(context, token_ids)
    served = context.config.served
    if ids and (served.parses_tools or served.parses_reasoning):
        with contextlib.suppress(RequestRefused):
            variables = context.config.data.chat_template_kwargs
            message = await context.policy.message(Parsed(ids, messages, tools, variables))
            if not parallel_tool_calls and message.get("tool_calls"):
                message["tool_calls"] = message["tool_calls"][:1]
            return {"content": None, **message}
    return {"role": "assistant", "content": text_of(context.tokenizer, ids)}


def without_end(context: RunContext, token_ids: Sequence[int]) -> list[int]:
    """Return an answer's tokens without its end-of-sequence token, if it has one."""
    ids = list(token_ids)
    return ids[:-1] if ids and ids[-1] in context.eos else ids


async def scores_of(
    context: RunContext,
    rewards: Mapping[str, Reward],
    prompt: str | list[dict[str, Any]],
    row: Row,
    index: int,
    answers: Sequence[AnswerText],
) -> list[SampleScore]:
    """Score `answers` by `rewards` (by name). Sends one request to the reward service, and one more
    for each gate that waits for another reward. Raises ScoringRefused."""
    if not rewards and not isinstance(context.config.algorithm.advantage, ReverseKL):
        return [earned_score(Earned(error=UNREWARDED)) for _ in answers]
    results: list[dict[str, ScoreResult]] = [{} for _ in answers]
    while scores := due(rewards, results):
        items = score_items(rewards, prompt, row, index, answers, scores)
        for score, result in zip(scores, await context.rewards.score(items), strict=True):
            results[score.sample][score.component] = result
    return [combine(rewards, known) for known in results]


@asynccontextmanager
async def deadline_of(
    at_deadline: str, seconds: float | None, weights: WeightLoader
) -> AsyncIterator[asyncio.Event | None]:
    """After `seconds` in which vLLM was awake, set the block's event (`complete`) or end the block
    with PastDeadline (`release`)."""
    if seconds is None:
        yield None
        return

    async def then(act: Callable[[], None]) -> None:
        await weights.awake_for(seconds)
        act()

    expired = asyncio.Event() if at_deadline == "complete" else None
    try:
        async with asyncio.timeout(None) as limit:
            act = expired.set if expired else lambda: limit.reschedule(0)
            timer = asyncio.create_task(then(act), name="deadline")
            try:
                yield expired
            finally:
                await end([timer])
    except TimeoutError as error:
        if limit.expired():
            raise PastDeadline("the group was not done by its deadline") from error
        raise


def to_group(
    context: RunContext,
    sampled: Sampled,
    *,
    task: int,
    attempt: str,
    row: int,
    live: WeightManifest,
    leased_at: float,
    sampled_reward: float | None = None,
    dataset: str = "",
    prompt_key: str = "",
) -> tuple[TrajectoryGroup, str]:
    """Return the trajectory group, and the version tag of its oldest token.

    `live` is the version of the lease; `sampled_reward` is the mean over all completions, with
    `best_of`; `dataset` is set in a mixture; `prompt_key`: see GroupHeader. Raises ValueError if
    the episode type did not return what this run needs.
    """
    origin = Origin(
        run=context.run,
        task=task,
        attempt=attempt,
        worker=context.worker,
        row=row,
        dataset=dataset,
        prompt_key=prompt_key,
        lineage=live.lineage,
        leased_at=leased_at,
        generated_at=sampled.generated_at,
        scored_at=sampled.scored_at,
        own=sampled.own,
        reference=sampled.reference,
    )
    dense = any(reward.dense for reward in context.config.components.values())
    if dense and any(c.text is not None for c in sampled.completions):
        raise ValueError(
            "the episode type shows verifiers a text of its own (Completion.text), so rewards of "
            "its parts do not belong to tokens: leave `dense` out of the rewards"
        )
    if context.config.sampling.cuts and any(c.sampling_mask is None for c in sampled.completions):
        raise ValueError(
            "the episode type does not pass Sample.sampling_mask on: without it, nothing sampled "
            "with sampling.top_k can be trained"
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
