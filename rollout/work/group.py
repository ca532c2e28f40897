"""Samples and scores one group, from a dataset row to scored completions. Knows no other group.

A verifier that broke gives no reward. A sample of an unpublished version is never sent.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean

from rollout.episodes import Completion, DescribesTools
from rollout.episodes.own_episode import checked
from rollout.rewards.combine import AnswerText, SampleScore, earned_score
from rollout.text.answer_text import prefill, text_of
from rollout.vllm.client.policy_client import PastDeadline
from rollout.vllm.client.resume import CUT_OFF, Begun
from rollout.vllm.client.weight_loader import WeightLoader
from rollout.work.filtering import chosen
from rollout.work.long_prompts import rendered
from rollout.work.prompt_sampler import PromptSampler
from rollout.work.run_context import RunContext
from rollout.work.scoring import scores_of
from services.contracts.config.data import PromptOptions
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.rewards import RewardComponent
from services.contracts.config.rollout import Sampling
from services.contracts.groups.sampled_answer import reference_text
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose
from services.contracts.scores import VERDICTS, ScoreStatus
from services.runtime.tasks import end


class VerifierBroke(RuntimeError):
    """No sample of a group could be scored."""


@dataclass
class Sampled:
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


@dataclass(frozen=True)
class SampleRequest:
    """The completions to sample of one dataset row."""

    index: int
    """The row's index in its dataset."""
    row: Row
    prompt: PromptOptions
    rewards: Mapping[str, RewardComponent]
    """By name."""
    sampling: Sampling
    samples: int
    seed: int | None = None
    deadline: float | None = None
    """Seconds after which the group is truncated or given up, by `rollout.at_deadline`."""
    leaving: asyncio.Event | None = None
    """Set when the worker leaves."""
    begun: Begun | None = None
    """What another worker has sampled of the group."""


async def sample_and_score(
    context: RunContext, request: SampleRequest, generated: Callable[[], None]
) -> Sampled:
    """Sample and score completions. Calls `generated` once they are sampled.

    Raises Interrupted, PastDeadline, PromptTooLong, ValueError (the prompt cannot be rendered, or
    the episode returned a wrong result), RequestRefused, VLLMUnavailable, ScoringRefused,
    ToolsAway.
    """
    row, sampling, episode = request.row, request.sampling, context.episode
    assert episode is not None
    prompt = compose(row, request.prompt)
    tools = await episode.described() if isinstance(episode, DescribesTools) else None
    cuts = context.config.data.long_prompts == "cut"
    longest = max(context.context - sampling.max_tokens, 1) if cuts else None
    asked = rendered(prompt, request.prompt, context.tokenizer, tools, context.context, longest)
    prompt_tokens = asked.tokens
    try:
        at_deadline = context.config.rollout.at_deadline
        weights = context.policy.weights
        async with deadline_of(at_deadline, request.deadline, weights) as expired:
            sampler = PromptSampler(
                context, sampling, request.seed, expired, request.leaving, request.begun
            )
            completions = await episode.run(row, prompt_tokens, request.samples, sampler)
    finally:
        generated()
    sampled = Sampled(
        prompt_tokens,
        checked(completions, request.samples),
        generated_at=time.time(),
        reference=reference_text(row.answer),
        prompt_cut=asked.lost,
    )
    begun = prefill(context.tokenizer, prompt_tokens)
    answers = [
        AnswerText(
            *(text_of(context.tokenizer, completion.token_ids), begun)
            if completion.text is None
            else (completion.text, completion.prefill),
            truncated=completion.finish_reason in CUT_OFF,
        )
        for completion in completions
        if completion.reward is None
    ]
    verified = iter(await scores_of(context, request.rewards, prompt, row, request.index, answers))
    sampled.scores = [earned_score(c.reward) if c.reward else next(verified) for c in completions]
    sampled.scored_at = time.time()
    return sampled


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
