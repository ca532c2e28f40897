"""From completions and scores to a trajectory group on the wire. Pure.

The group says for every token which version sampled it; the oldest of them is what staleness
goes by.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout.episodes import Completion
from services.contracts.config.run import Reward, component_names
from services.contracts.scores import ScoreItem, ScoreResult, ScoreStatus
from services.contracts.trajectory import GroupHeader, TrajectoryGroup
from services.contracts.weights import parse_version_tag


@dataclass(frozen=True)
class SampleScore:
    """One sample over all of the run's verifiers. `reward` is None where one of them broke."""

    reward: float | None
    status: str
    components: dict[str, float | None]
    detail: str = ""


def score_items(
    rewards: list[Reward],
    asked: str | list[dict[str, Any]],
    answer: Any,
    texts: list[str],
    row: int,
) -> list[ScoreItem]:
    """What to ask the reward service: for each completion, every verifier of the run. `row` is
    the dataset row that `answer` stands in."""
    return [
        ScoreItem(
            id=f"{sample}/{index}",
            verifier=reward.verifier,
            prompt=asked,
            completion=text,
            answer=answer,
            params=reward.params,
            row=row,
        )
        for sample, text in enumerate(texts)
        for index, reward in enumerate(rewards)
    ]


def combine(rewards: list[Reward], results: list[ScoreResult]) -> list[SampleScore]:
    """Scores per sample, from the results of `score_items` in their order.

    The reward is the weighted sum. One verifier's error makes the whole sample's reward None:
    a sum that lacks a part is not a smaller reward, it is an unknown one. The status is that of
    the first verifier, or `error`.
    """
    width = len(rewards)
    names = component_names(rewards)
    scores = []
    for start in range(0, len(results), width):
        own = results[start : start + width]
        broken = next((r for r in own if r.status is ScoreStatus.ERROR), None)
        total = None
        if broken is None:
            total = sum(
                reward.weight * (result.reward or 0.0)
                for reward, result in zip(rewards, own, strict=True)
            )
        scores.append(
            SampleScore(
                reward=total,
                status=(broken or own[0]).status.value,
                components={name: result.reward for name, result in zip(names, own, strict=True)},
                detail=(broken or own[0]).detail,
            )
        )
    return scores


@dataclass(frozen=True)
class Origin:
    """Who sampled a group, for which draw."""

    run: str
    draw: int
    attempt: str
    worker: str
    row: int
    lineage: str
    leased_at: float
    generated_at: float
    scored_at: float


def assemble(
    origin: Origin,
    prompt_tokens: list[int],
    completions: list[Completion],
    scores: list[SampleScore],
) -> TrajectoryGroup:
    """The group. Completions and scores are in the same order."""
    tags: dict[str, int] = {}
    spans = [
        (sample, span.start, span.end, tags.setdefault(span.version, len(tags)))
        for sample, completion in enumerate(completions)
        for span in completion.spans
    ]
    names = list(scores[0].components) if scores else []
    return TrajectoryGroup(
        header=GroupHeader(
            run=origin.run,
            draw=origin.draw,
            attempt=origin.attempt,
            worker=origin.worker,
            row=origin.row,
            lineage=origin.lineage,
            tags=list(tags),
            finish_reasons=[completion.finish_reason for completion in completions],
            statuses=[score.status for score in scores],
            rewards=[score.reward for score in scores],
            components={name: [score.components[name] for score in scores] for name in names},
            leased_at=origin.leased_at,
            generated_at=origin.generated_at,
            scored_at=origin.scored_at,
        ),
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        lengths=np.array([len(c.token_ids) for c in completions], dtype=np.int64),
        tokens=_joined([c.token_ids for c in completions], np.int64),
        loss_mask=_joined([c.loss_mask for c in completions], np.bool_),
        logprobs=_joined([c.logprobs for c in completions], np.float32),
        spans=np.array(spans, dtype=np.int64).reshape(-1, 4),
    )


def _joined(arrays: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.asarray(a, dtype=dtype) for a in arrays] or [np.empty(0, dtype)])


def oldest_tag(tags: list[str], live: str, forks: dict[str, int]) -> str:
    """Which of `tags` lies farthest back from `live`; `live` itself where nothing was sampled.

    Versions form a tree. A tag of an earlier lineage that lies `v − f` along a dead branch, past
    the fork at `f`, is as far from the living branch as version `f − (v − f)` is. `forks` gives
    f for each lineage that was seen to end; one that is not there is taken as an ancestor, whose
    versions count as they are.
    """

    def counted(tag: str) -> int:
        lineage, version = parse_version_tag(tag)
        fork = forks.get(lineage, version)
        return min(version, 2 * fork - version)

    return min([live, *tags], key=counted)
