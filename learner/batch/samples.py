"""Turn groups from the wire into the samples that a step trains.

A trajectory whose verifier broke (reward null) must never enter the loss, the denominators or the
statistics of its group. Tokens are the sampler's: this module never re-tokenizes.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from learner.batch.staleness import Ancestry
from learner.objective.advantages import group_advantages
from learner.objective.baselines import GroupReward
from learner.objective.shaping import replaced, shaped_rewards
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.groups.branches import Conversation
from services.contracts.groups.trajectory import TRUNCATED, TrajectoryGroup

ROUTER_CHOICE = -1
"""Stands for an expert's number: the router chooses by itself."""


@dataclass
class TrainingSample:
    """One completion, or one conversation of an agent's session with branches.

    `k` is the number of its tokens in the loss. A token that several conversations begin with is in
    the loss of the first conversation only.
    """

    tokens: torch.Tensor
    """[t] prompt and completion."""
    loss_mask: torch.Tensor
    """[t] bool: tokens in the loss."""
    sampler_logprobs: torch.Tensor
    """[k] float32, log μ."""
    staleness: torch.Tensor
    """[k] versions between the token's sampler and the version being trained."""
    advantage: float
    """Advantage of each of its tokens. With `global_whiten`, a critic or a teacher: the reward."""
    task: int
    """The group's task."""
    number: int
    """Number of its sample within the group."""
    group_lengths: tuple[int, ...]
    """Tokens in the loss of each sample of the group, including samples that other ranks train."""
    first: bool = True
    """Whether this is the first trained conversation of its completion."""
    proximal_logprobs: torch.Tensor | None = None
    """[k], if the proximal policy is not the sampler."""
    reference_logprobs: torch.Tensor | None = None
    """[k], with a KL to a reference."""
    teacher_logprobs: torch.Tensor | None = None
    """[k], if a teacher scores each token."""
    token_advantages: torch.Tensor | None = None
    """[k], from estimators that give each token its own."""
    rewards: torch.Tensor | None = None
    """[k] float64 share of a dense score that each token earned. The last token gets the remainder.
    """
    sampling_mask: torch.Tensor | None = None
    """[k, w] int32 ids that each token was sampled from, padded with −1. None: the whole
    vocabulary."""
    truncated: bool = False
    """Whether the completion reached its token limit before it ended."""
    values: torch.Tensor | None = None
    """[k + 1] the critic's values before the batch's updates, in the critic's units: before each
    token in the loss, and at the last token."""
    learner_logprobs: torch.Tensor | None = None
    """[k] log-probabilities in the first pass over its minibatch, once that pass is made."""
    entropy: torch.Tensor | None = None
    """[k] entropies of that pass."""
    returns: torch.Tensor | None = None
    """float64 targets of the critic: [k], one for each token in the loss; [k + 1] if the place
    after the last token has the score; [1] with `sequence_value`."""
    experts: torch.Tensor | None = None
    """[t, layers, experts per token] int16 experts that vLLM used, `ROUTER_CHOICE` if unknown. None
    without replay."""

    @property
    def trains(self) -> bool:
        """Whether any of its tokens are in the loss."""
        return len(self.sampler_logprobs) > 0


def group_samples(
    group: TrajectoryGroup,
    algorithm: Algorithm,
    max_tokens: int,
    staleness: torch.Tensor,
    dealt: Collection[int] | None = None,
    baseline: float = 0.0,
) -> list[TrainingSample]:
    """Make the samples of `group`: one for each completion, or one for each conversation of a
    completion with branches. `max_tokens`: the longest completion allowed; `staleness`: see
    `token_staleness`; `dealt`: the samples that this rank trains, or None for all (the others get
    no recorded routing here); `baseline`: see `group_advantages`.

    `shaping.mask_truncated` removes truncated samples from the loss but keeps them in the group's
    statistics. A null reward removes a sample from both.
    """
    truncated = torch.tensor([reason in TRUNCATED for reason in group.header.finish_reasons])
    conversations = [group.conversations_of(i) for i in range(group.samples)]
    longest = longest_of(conversations)
    scores = group_scores(group, algorithm, max_tokens)
    advantages = group_advantages(algorithm.advantage, scores, baseline)
    unreplaced = ~replaced(algorithm.shaping, ~truncated, longest)
    prompt = torch.from_numpy(group.prompt_tokens)
    sampling_mask = (
        None if group.sampling_mask is None else torch.from_numpy(group.sampling_mask.table())
    )
    ends = group.lengths.cumsum()
    pieces = [slice(int(e - n), int(e)) for e, n in zip(ends, group.lengths, strict=True)]
    masks = [
        torch.from_numpy(group.loss_mask[piece].copy()) & trains
        for piece, trains in zip(
            pieces, group.in_loss(algorithm.shaping.mask_truncated), strict=True
        )
    ]
    group_lengths = tuple(int(mask.sum()) for mask in masks)
    replayed: Collection[int] = ()
    if algorithm.router.replay:
        replayed = range(group.samples) if dealt is None else dealt
    samples = []
    for i, (piece, mask) in enumerate(zip(pieces, masks, strict=True)):
        earned = None
        if group.token_rewards is not None and unreplaced[i]:
            earned = algorithm.shaping.scale * torch.from_numpy(group.token_rewards[piece]).double()
        teacher = None
        if group.teacher_logprobs is not None:
            teacher = torch.from_numpy(group.teacher_logprobs[piece])
        trained = False
        for conversation in conversations[i]:
            places, new = torch.from_numpy(conversation.places), torch.from_numpy(conversation.new)
            in_loss = mask[places] & new
            begins, chosen = prompt[: conversation.prompt], places[in_loss]
            dense = None if earned is None else rewards_in_loss(earned[places] * new, in_loss)
            samples.append(
                TrainingSample(
                    tokens=torch.cat([begins, torch.from_numpy(group.tokens[piece])[places]]),
                    loss_mask=torch.cat([torch.zeros(len(begins), dtype=torch.bool), in_loss]),
                    sampler_logprobs=torch.from_numpy(group.logprobs[piece])[chosen],
                    staleness=staleness[piece][chosen],
                    advantage=float(advantages[i]),
                    task=group.header.task,
                    number=i,
                    group_lengths=group_lengths,
                    first=bool(in_loss.any()) and not trained,
                    teacher_logprobs=None if teacher is None else teacher[chosen],
                    rewards=dense,
                    sampling_mask=None if sampling_mask is None else sampling_mask[piece][chosen],
                    truncated=bool(truncated[i]),
                    experts=recorded_experts(group, i) if i in replayed else None,
                )
            )
            trained = trained or samples[-1].trains
    return samples


def longest_of(conversations: Sequence[Sequence[Conversation]]) -> torch.Tensor:
    """[samples] tokens after the prompt in the longest conversation of each sample."""
    return torch.tensor(
        [max(len(conversation.places) for conversation in of_sample) for of_sample in conversations]
    )


def group_scores(group: TrajectoryGroup, algorithm: Algorithm, max_tokens: int) -> torch.Tensor:
    """[samples] float64 rewards after shaping. NaN stands for a null reward."""
    header = group.header
    rewards = torch.tensor(
        [float("nan") if r is None else r for r in header.rewards], dtype=torch.float64
    )
    ended = torch.tensor([reason not in TRUNCATED for reason in header.finish_reasons])
    longest = longest_of([group.conversations_of(i) for i in range(group.samples)])
    return shaped_rewards(algorithm.shaping, rewards, ended, longest, max_tokens)


def group_reward(
    group: TrajectoryGroup, algorithm: Algorithm, max_tokens: int
) -> GroupReward | None:
    """Return what a group adds to the running means, or None if no sample has a reward."""
    mean = float(group_scores(group, algorithm, max_tokens).nanmean())
    return None if math.isnan(mean) else GroupReward(group.header.prompt_key, mean)


def rewards_in_loss(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[k] rewards of the tokens in the loss (`mask` [t]), from `rewards` [t] of all tokens. The
    reward of a token outside the loss goes to the last loss token before it, or to the first loss
    token."""
    kept = rewards.new_zeros(int(mask.sum()))
    if len(kept):
        kept.index_add_(0, (mask.cumsum(0) - 1).clamp(min=0), rewards)
    return kept


def recorded_experts(group: TrajectoryGroup, sample: int) -> torch.Tensor | None:
    """[t, layers, experts per token] int16 of one sample, including its prompt. The last token has
    no routing. Return None if no routing was recorded."""
    if group.experts is None or group.routed is None:
        return None
    prompt, length = len(group.prompt_tokens), int(group.lengths[sample])
    start, known = prompt + int(group.routed[:sample].sum()), int(group.routed[sample])
    experts = torch.full(
        (prompt + length, *group.experts.shape[1:]), ROUTER_CHOICE, dtype=torch.int16
    )
    experts[:prompt] = torch.from_numpy(group.experts[:prompt].astype("int16"))
    recorded = group.experts[start : start + known]
    experts[prompt : prompt + known] = torch.from_numpy(recorded.astype("int16"))
    return experts


def token_staleness(group: TrajectoryGroup, ancestry: Ancestry, version: int) -> torch.Tensor:
    """[tokens] int64 staleness of each completion token at `version`. Tokens outside every span get
    0, because the policy did not sample them."""
    staleness = torch.zeros(int(group.lengths.sum()), dtype=torch.int64)
    starts = group.lengths.cumsum() - group.lengths
    by_tag = [ancestry.staleness(tag, version) for tag in group.header.tags]
    for sample, start, end, tag in group.spans.tolist():
        offset = int(starts[sample])
        staleness[offset + start : offset + end] = by_tag[tag]
    return staleness
