"""Combines verifiers' results into rewards: gates, clips, weights. Pure.

A run's rewards are scored in rounds: first rewards without a gate, then rewards whose gate is open.
A verifier that broke makes the reward unknown: a sum with a missing part would be wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollout.rewards.token_rewards import Part, earned
from services.contracts.config.rewards import RewardComponent
from services.contracts.rows.dataset import Row
from services.contracts.scores import ScoreItem, ScoreResult, ScoreStatus
from services.contracts.sessions import Reward

REASON_LIMIT = 300
"""Characters of a verifier's reason that travel with a group."""
Results = Mapping[str, ScoreResult]
"""Results of one sample, by the name of the component."""


@dataclass(frozen=True)
class SampleScore:
    """One sample's score over all of the run's rewards. `reward` is None if a verifier broke."""

    reward: float | None
    status: str
    """The status of the first component, or `error`."""
    components: dict[str, float | None]
    """Each component before its weight, and its verifier's named parts as `component/part`. None:
    not scored."""
    detail: str = ""
    """The reason of the first component, or of the component that broke."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Each verifier's reason, by component."""
    parts: list[Part] = field(default_factory=list)
    """Dense rewards: the rewards of the text's parts."""


class AnswerText(NamedTuple):
    """An answer as verifiers read it."""

    text: str
    prefill: str = ""
    """The beginning of the answer that the prompt already has, such as `<think>`."""
    truncated: bool = False
    """Whether the answer was cut off at its length limit or deadline."""


@dataclass(frozen=True)
class Due:
    """A score that can be requested now."""

    sample: int
    component: str


def due(rewards: Mapping[str, RewardComponent], results: Sequence[Results]) -> list[Due]:
    """Return the missing scores that can be requested now: without a gate, or with an open gate.
    Empty when all scores are known. `rewards` is by name, `results` by sample."""
    return [
        Due(sample, name)
        for sample, known in enumerate(results)
        for name, reward in rewards.items()
        if name not in known and _open(reward, known)
    ]


def _open(reward: RewardComponent, known: Results) -> bool:
    gate = reward.only_if
    if gate is None:
        return True
    result = known.get(gate.component)
    return result is not None and result.reward is not None and result.reward >= gate.at_least


def score_items(
    rewards: Mapping[str, RewardComponent],
    prompt: str | list[dict[str, Any]],
    row: Row,
    index: int,
    answers: Sequence[AnswerText],
    scores: Sequence[Due],
) -> list[ScoreItem]:
    """Return the reward service's items for `scores`, in that order. `answers` answer `row`, which
    is row `index` of its dataset."""
    return [
        ScoreItem(
            id=f"{score.sample}/{score.component}",
            verifier=rewards[score.component].verifier,
            prompt=prompt,
            completion=answers[score.sample].text,
            prefill=answers[score.sample].prefill,
            truncated=answers[score.sample].truncated,
            answer=row.answer,
            columns=row.columns,
            params=rewards[score.component].params,
            row=index,
        )
        for score in scores
    ]


def combine(rewards: Mapping[str, RewardComponent], known: Results) -> SampleScore:
    """Combine a sample's results when no score is missing. Without `rewards` the score is 0,
    because the run then does not learn from rewards."""
    if not rewards:
        return SampleScore(0.0, ScoreStatus.SCORED.value, {})
    first = known[next(iter(rewards))]
    broken = next((r for r in known.values() if r.status is ScoreStatus.ERROR), None)
    components: dict[str, float | None] = {}
    total = 0.0
    for name, reward in rewards.items():
        result = known.get(name)
        raw = None if result is None else result.reward
        value = None if raw is None else reward.clipped(raw)
        total += reward.weight * (value or 0.0)
        components[name] = value
        if result is not None:
            components |= {f"{name}/{part}": size for part, size in result.components.items()}
    deciding = broken or first
    return SampleScore(
        reward=None if broken else total,
        status=deciding.status.value,
        components=components,
        detail=deciding.detail,
        reasons={
            name: result.detail[:REASON_LIMIT] for name, result in known.items() if result.detail
        },
        parts=earned(rewards, known),
    )


def earned_score(reward: Reward) -> SampleScore:
    """Return the score of a sample whose reward comes from its episode or its client."""
    status = ScoreStatus.ERROR if reward.reward is None else ScoreStatus.SCORED
    return SampleScore(
        reward=reward.reward,
        status=status.value,
        components=dict(reward.components),
        detail=reward.error,
        reasons={"reward": reward.error[:REASON_LIMIT]} if reward.error else {},
    )
