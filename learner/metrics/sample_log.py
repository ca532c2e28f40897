"""A few of each batch's completions as text: the best and the worst of one group, and others.

They come from the first rank's share of the batch, so nothing extra is fetched.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from learner.batch.samples import TrainingSample
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import GAE, GlobalWhiten, ReverseKL, SequenceValue
from services.contracts.groups.sampled_answer import SampledAnswer, cut, extremes
from services.contracts.groups.trajectory import GroupHeader, TrajectoryGroup
from services.contracts.weights import parse_version_tag

Rewards = Sequence[float | None]

PER_STEP = 4
"""Completions of each batch that are logged."""


@dataclass(frozen=True)
class Picked:
    header: GroupHeader
    sample: TrainingSample
    prompt_tokens: int
    versions: list[int]


def pick(
    groups: Sequence[TrajectoryGroup], samples: Sequence[TrainingSample], step: int, count: int
) -> list[Picked]:
    """Pick up to `count` completions of `groups`, whose samples are `samples`. If a completion has
    branches, its last conversation is logged."""
    last = {(sample.task, sample.number): sample for sample in samples}
    chosen = choose([group.header.rewards for group in groups], step, count)
    return [
        Picked(
            group.header, last[group.header.task, i], len(group.prompt_tokens), versions(group, i)
        )
        for group, i in ((groups[g], i) for g, i in chosen)
    ]


def choose(rewards: Sequence[Rewards], step: int, count: int) -> list[tuple[int, int]]:
    """Choose (group, sample) of up to `count` completions, from each group's `rewards`. First the
    best and the worst of one group, which changes with `step`; then one completion of each
    following group, and so on."""
    if not rewards:
        return []
    turn = step % len(rewards)
    first = [(turn, i) for i in extremes(rewards[turn])]
    others = (pair for pair in _others(rewards, step) if pair not in first)
    return list(islice(chain(first, others), count))


def _others(rewards: Sequence[Rewards], step: int) -> Iterator[tuple[int, int]]:
    """Yield every completion: one of each group, starting after the group of `step`, then a second
    of each, and so on."""
    for again in range(max(len(group) for group in rewards)):
        for after in range(1, len(rewards) + 1):
            group = (step + after) % len(rewards)
            if again < len(rewards[group]):
                yield group, (step + again) % len(rewards[group])


def versions(group: TrajectoryGroup, sample: int) -> list[int]:
    """Return the versions that sampled tokens of one completion, oldest first."""
    tags = {int(tag) for i, _, _, tag in group.spans if i == sample}
    return sorted({parse_version_tag(group.header.tags[tag])[1] for tag in tags})


def described(
    picked: Sequence[Picked], step: int, algorithm: Algorithm, tokenizer: Any
) -> list[dict[str, Any]]:
    """Return the rows of `samples.jsonl` for a trained batch."""
    # For these estimators `TrainingSample.advantage` holds the reward.
    keeps_reward = isinstance(algorithm.advantage, GlobalWhiten | GAE | SequenceValue | ReverseKL)
    # Decode the text as it was sampled, including special tokens.
    decode = partial(
        tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    rows = []
    for completion in picked:
        header, sample, i = completion.header, completion.sample, completion.sample.number
        tokens = sample.tokens.tolist()
        answer = SampledAnswer(
            step=step,
            task=header.task,
            row=header.row,
            dataset=header.dataset,
            own=header.own,
            prompt=cut(decode(tokens[: completion.prompt_tokens])),
            completion=cut(decode(tokens[completion.prompt_tokens :])),
            reference=header.reference,
            tokens=max(len(tokens) - completion.prompt_tokens, 0),
            reward=header.rewards[i],
            status=header.statuses[i],
            components={name: values[i] for name, values in header.components.items()},
            reasons=header.reasons[i] if header.reasons else {},
            advantage=None if keeps_reward or not sample.trains else sample.advantage,
            finish_reason=header.finish_reasons[i],
            versions=completion.versions,
        )
        rows.append(answer.model_dump())
    return rows
