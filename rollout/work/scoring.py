"""Scores answers through the reward service."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollout.rewards.combine import (
    AnswerText,
    SampleScore,
    combine,
    due,
    earned_score,
    score_items,
)
from rollout.work.run_context import RunContext
from services.contracts.config.objective.terms import ReverseKL
from services.contracts.config.rewards import RewardComponent
from services.contracts.rows.dataset import Row
from services.contracts.scores import ScoreResult
from services.contracts.sessions import Reward

UNREWARDED = "the episode gave no reward, and the run has no verifier (rewards)"


async def scores_of(
    context: RunContext,
    rewards: Mapping[str, RewardComponent],
    prompt: str | list[dict[str, Any]],
    row: Row,
    index: int,
    answers: Sequence[AnswerText],
) -> list[SampleScore]:
    """Score `answers` by `rewards` (by name). Sends one request to the reward service, and one more
    for each gate that waits for another reward. Raises ScoringRefused."""
    if not rewards and not isinstance(context.config.algorithm.advantage, ReverseKL):
        return [earned_score(Reward(error=UNREWARDED)) for _ in answers]
    results: list[dict[str, ScoreResult]] = [{} for _ in answers]
    while scores := due(rewards, results):
        items = score_items(rewards, prompt, row, index, answers, scores)
        for score, result in zip(scores, await context.rewards.score(items), strict=True):
            results[score.sample][score.component] = result
    return [combine(rewards, known) for known in results]
