"""Assembles a sampled group into a trajectory group.

The group has the version of every sampled token. The oldest version decides its staleness.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rollout.rewards.token_rewards import Decode, token_rewards
from rollout.text.answer_text import text_of
from rollout.vllm.client.expert_routing import gathered
from rollout.work.group import Sampled
from rollout.work.run_context import RunContext
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.groups.trajectory import GroupHeader, TrajectoryGroup
from services.contracts.weights import parse_version_tag


@dataclass(frozen=True)
class Origin:
    run: str
    task: int
    attempt: str
    worker: str
    row: int
    lineage: str
    """The lease's."""
    leased_at: float
    dataset: str = ""
    """The dataset's name in a mixture; otherwise empty."""
    prompt_key: str = ""
    """See GroupHeader."""


def to_group(
    context: RunContext, origin: Origin, sampled: Sampled, sampled_reward: float | None = None
) -> TrajectoryGroup:
    """Return the group of `sampled` with everything that the run trains on. `sampled_reward`: the
    mean reward of all samples, with `best_of`. Raises ValueError if the episode type did not return
    what this run needs."""
    config, completions = context.config, sampled.completions
    dense = any(reward.dense for reward in config.components.values())
    if dense and any(c.text is not None for c in completions):
        raise ValueError(
            "the episode type shows verifiers a text of its own (Completion.text), so rewards of "
            "its parts do not belong to tokens: leave `dense` out of the rewards"
        )
    if config.sampling.cuts and any(c.sampling_mask is None for c in completions):
        raise ValueError(
            "the episode type does not pass Sample.sampling_mask on: without it, nothing sampled "
            "with sampling.top_k can be trained"
        )
    decode = partial(text_of, context.tokenizer) if dense else None
    return assemble(origin, sampled, sampled_reward, decode, config.algorithm.router.replay)


def assemble(
    origin: Origin,
    sampled: Sampled,
    sampled_reward: float | None = None,
    decode: Decode | None = None,
    routing: bool = False,
) -> TrajectoryGroup:
    """Return the group of `sampled`. Pure.

    `sampled_reward`: the mean reward of all samples, with `best_of`. `decode`: from tokens to the
    text that verifiers saw, with dense rewards. `routing`: whether to add expert routing. Raises
    MissingRouting.
    """
    completions, scores = sampled.completions, sampled.scores
    tags: dict[str, int] = {}
    spans = [
        (sample, span.start, span.end, tags.setdefault(span.version, len(tags)))
        for sample, completion in enumerate(completions)
        for span in completion.spans
    ]
    sampling_mask = [
        completion.sampling_mask
        for completion in completions
        if completion.sampling_mask is not None
    ]
    experts = routed = None
    if routing:
        lengths = [len(completion.token_ids) for completion in completions]
        experts, routed = gathered(
            len(sampled.prompt_tokens), lengths, [c.experts for c in completions]
        )
    branches = [(i, *branch) for i, c in enumerate(completions) for branch in c.branches]
    turns = [completion.turns for completion in completions]
    names = dict.fromkeys(name for score in scores for name in score.components)
    return TrajectoryGroup(
        header=GroupHeader(
            run=origin.run,
            task=origin.task,
            attempt=origin.attempt,
            worker=origin.worker,
            row=origin.row,
            dataset=origin.dataset,
            prompt_key=origin.prompt_key,
            own=sampled.own,
            lineage=origin.lineage,
            tags=list(tags),
            finish_reasons=[completion.finish_reason for completion in completions],
            statuses=[score.status for score in scores],
            rewards=[score.reward for score in scores],
            components={name: [score.components.get(name) for score in scores] for name in names},
            reasons=[score.reasons for score in scores],
            reference=sampled.reference,
            sampled_reward=sampled_reward,
            leased_at=origin.leased_at,
            generated_at=sampled.generated_at,
            scored_at=sampled.scored_at,
        ),
        prompt_tokens=np.array(sampled.prompt_tokens, dtype=np.int64),
        lengths=np.array([len(c.token_ids) for c in completions], dtype=np.int64),
        tokens=_joined([c.token_ids for c in completions], np.int64),
        loss_mask=_joined([c.loss_mask for c in completions], np.bool_),
        logprobs=_joined([c.logprobs for c in completions], np.float32),
        spans=np.array(spans, dtype=np.int64).reshape(-1, 4),
        token_rewards=None
        if decode is None
        else _joined(
            [
                token_rewards(score.parts, completion.token_ids.tolist(), decode)
                for score, completion in zip(scores, completions, strict=True)
            ],
            np.float32,
        ),
        sampling_mask=SamplingMask.joined(sampling_mask)
        if len(sampling_mask) == len(completions)
        else None,
        experts=experts,
        routed=routed,
        branches=np.array(branches, dtype=np.int64) if branches else None,
        turns=np.array(turns, dtype=np.int64) if any(turns) else None,
    )


def _joined(arrays: list[Any], dtype: Any) -> Any:
    return np.concatenate([np.asarray(a, dtype=dtype) for a in arrays] or [np.empty(0, dtype)])


def oldest_tag(tags: list[str], live: str, forks: dict[str, int]) -> str:
    """Return the tag with the most staleness; `live` if nothing was sampled.

    Versions form a tree. A version `v` of a lineage that ended at its fork `f` is `v − f` steps
    along a dead branch, as far from the living branch as version `f − (v − f)`. `forks` has `f` for
    each lineage that ended. Versions of other lineages count as they are.
    """

    def age(tag: str) -> int:
        lineage, version = parse_version_tag(tag)
        fork = forks.get(lineage, version)
        return min(version, 2 * fork - version)

    return min([live, *tags], key=age)
