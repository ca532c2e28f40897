"""From a group on the wire to samples: masks, advantages, token versions."""

import numpy as np
import pytest
import torch

from learner.batch.samples import ROUTER_CHOICE, group_samples, token_staleness
from learner.batch.staleness import Ancestry
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.shaping import Shaping
from services.contracts.config.objective.terms import GroupMean
from services.contracts.config.router import Router
from services.contracts.groups.trajectory import decode, encode
from tests.unit.learner.policies import trajectory_group

LINE = Ancestry((("a", 0),))
MEAN = Algorithm(advantage=GroupMean(type="group_mean"))


def test_a_sample_holds_what_was_sampled_and_trains_only_that() -> None:
    group = decode(encode(trajectory_group([1.0, 0.0])))
    first, second = group_samples(group, MEAN, 9, token_staleness(group, LINE, 3))
    assert first.tokens.tolist() == [1, 7, 10, 11]
    assert first.loss_mask.tolist() == [False, False, True, False]
    assert first.sampler_logprobs.tolist() == pytest.approx([-0.1])
    assert first.staleness.tolist() == [2]
    assert second.tokens.tolist() == [1, 7, 10, 11, 12]
    assert second.loss_mask.tolist() == [False, False, True, False, True]
    assert second.sampler_logprobs.tolist() == pytest.approx([-0.3, -0.5])
    assert second.staleness.tolist() == [2, 1]
    assert [first.advantage, second.advantage] == [0.5, -0.5]
    assert first.task == second.task == 5


REPLAY = Algorithm(advantage=GroupMean(type="group_mean"), router=Router(replay=True))


def test_each_sample_replays_the_experts_of_its_prompt_and_its_own_tokens() -> None:
    group = trajectory_group([1.0, 0.0])
    # A layer with one expert per token: both tokens of the prompt, the one token of the first
    # answer that went through a layer, and two of the second answer.
    group.experts = np.array([3, 250, 1, 5, 6], np.uint8).reshape(5, 1, 1)
    group.routed = np.array([1, 2])
    first, second = group_samples(
        decode(encode(group)), REPLAY, 9, token_staleness(decode(encode(group)), LINE, 3)
    )
    assert first.experts is not None
    assert first.experts.flatten().tolist() == [3, 250, 1, ROUTER_CHOICE]
    assert second.experts is not None
    assert second.experts.flatten().tolist() == [3, 250, 5, 6, ROUTER_CHOICE]
    without = group_samples(group, MEAN, 9, token_staleness(group, LINE, 3))
    assert [sample.experts for sample in without] == [None, None]
    group.keep_experts([1])
    assert group.experts.flatten().tolist() == [3, 250, 5, 6]
    other, own = group_samples(group, REPLAY, 9, token_staleness(group, LINE, 3), dealt=[1])
    assert other.experts is None
    assert own.experts is not None
    assert torch.equal(own.experts, second.experts)
    group.keep_experts(())
    assert group.experts.flatten().tolist() == [3, 250]
    # Groups sampled before the run was resumed with replay.
    old = group_samples(
        trajectory_group([1.0, 0.0]),
        REPLAY,
        9,
        token_staleness(trajectory_group([1.0, 0.0]), LINE, 3),
    )
    assert [sample.experts for sample in old] == [None, None]


def test_a_null_reward_masks_the_sample_and_leaves_the_statistics() -> None:
    samples = group_samples(
        trajectory_group([1.0, None, 0.0]),
        MEAN,
        9,
        token_staleness(trajectory_group([1.0, None, 0.0]), LINE, 3),
    )
    assert [sample.advantage for sample in samples] == [0.5, 0.0, -0.5]
    assert [sample.trains for sample in samples] == [True, False, True]
    assert len(samples[1].sampler_logprobs) == 0
    assert not samples[1].loss_mask.any()


@pytest.mark.parametrize("reason", ["length", "deadline"])
def test_a_truncated_sample_stays_in_the_statistics(reason: str) -> None:
    group = trajectory_group([1.0, 0.0, 0.5], finish_reasons=["stop", reason, "stop"])
    masking = MEAN.model_copy(update={"shaping": Shaping(mask_truncated=True)})
    samples = group_samples(group, masking, 9, token_staleness(group, LINE, 3))
    assert [sample.trains for sample in samples] == [True, False, True]
    assert [sample.advantage for sample in samples] == [0.5, -0.5, 0.0]
    assert all(
        sample.trains for sample in group_samples(group, MEAN, 9, token_staleness(group, LINE, 3))
    )


def test_rewards_are_clipped_before_advantages() -> None:
    clipped = MEAN.model_copy(update={"shaping": Shaping(max_reward_clip=2.0)})
    samples = group_samples(
        trajectory_group([9.0, 0.0]),
        clipped,
        9,
        token_staleness(trajectory_group([9.0, 0.0]), LINE, 3),
    )
    assert [sample.advantage for sample in samples] == [1.0, -1.0]


def test_length_and_end_of_an_answer_shape_its_reward() -> None:
    # Answers of 2, 3 and 4 of at most 5 tokens: the last is 1 of 2 tokens into the buffer; the
    # second was truncated, and its 1 is replaced by −1. Scores .5, −1, 1: mean 1/6.
    group = trajectory_group([0.5, 1.0, 1.5], finish_reasons=["stop", "length", "stop"])
    shaping = Shaping(penalise_no_eos=True, reward_penalty=-1.0, overlong_buffer=2)
    samples = group_samples(
        group, MEAN.model_copy(update={"shaping": shaping}), 5, token_staleness(group, LINE, 3)
    )
    advantages = [sample.advantage for sample in samples]
    assert advantages == pytest.approx([0.5 - 1 / 6, -1 - 1 / 6, 1 - 1 / 6])


def test_each_token_has_its_own_staleness() -> None:
    assert token_staleness(trajectory_group([1.0, 0.0]), LINE, 4).tolist() == [3, 0, 3, 0, 2]
