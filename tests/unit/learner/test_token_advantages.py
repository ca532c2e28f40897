"""Dense rewards in the objective, with hand-computed values."""

from typing import Any

import numpy as np
import pytest
import torch

from learner.batch.samples import TrainingSample, group_samples, rewards_in_loss, token_staleness
from learner.batch.staleness import Ancestry
from learner.batch.token_advantages import set_returns, token_rewards
from learner.objective.advantages import discounted_returns
from learner.objective.compose import Objective
from learner.objective.value_loss import Scale
from services.contracts.config.objective.algorithm import Algorithm
from tests.unit.learner.policies import tensor, trajectory_group
from tests.unit.learner.unigrams import ALONE


def dense_sample(**algorithm: Any) -> tuple[TrainingSample, Objective]:
    """An answer of four tokens. The second is not the policy's, and its reward counts as the
    first's. The answer's reward is 5; its tokens earned ½, 1, 0 and ¼ before the end."""
    given = {"advantage": {"type": "gae", "whiten": False, "gamma": 0.5, "lambda": 0.5}}
    chosen = Algorithm.model_validate({**given, "critic": {}, **algorithm})
    group = trajectory_group([2.0, 0.0, 5.0], finish_reasons=["stop", "stop", "length"])
    group.token_rewards = np.array([0, 0, 0, 0, 0, 0.5, 1, 0, 0.25], np.float32)
    samples = group_samples(group, chosen, 9, token_staleness(group, Ancestry((("a", 0),)), 3))
    return samples[2], Objective(chosen, 1.0, 9)


def test_the_last_token_gets_the_rest_of_a_dense_score() -> None:
    # 1.5, 0 and ¼ of 5: the remainder is 3.25.
    sample, goal = dense_sample()
    assert token_rewards(sample, goal).tolist() == [1.5, 0.0, 3.5]


def test_scale_is_of_all_rewards_and_bias_of_the_whole() -> None:
    # (5 − 1)·2 = 8, with 3, 0 and ½ earned before the end.
    sample, goal = dense_sample(shaping={"scale": 2.0, "bias": 1.0})
    assert token_rewards(sample, goal).tolist() == [3.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("shaping", "score"),
    [
        ({"penalise_no_eos": True, "reward_penalty": -3.0}, -3.0),
        ({"min_response_length": 9, "reward_penalty": -3.0}, -3.0),
        ({"mask_no_eos_with_zero": True}, 0.0),
    ],
)
def test_a_replaced_score_has_no_dense_part(shaping: dict[str, Any], score: float) -> None:
    sample, goal = dense_sample(shaping=shaping)
    assert token_rewards(sample, goal).tolist() == [0.0, 0.0, score]


def test_a_penalty_in_the_reward_is_each_tokens_own() -> None:
    sample, goal = dense_sample(kl={"type": "k1_in_reward", "beta": 0.5})
    sample.sampler_logprobs = tensor(-1.0, -2.0, -3.0)
    sample.reference_logprobs = tensor(-2.0, -2.0, -1.0)
    # −½ · (1, 0, −2).
    assert token_rewards(sample, goal).tolist() == [1.0, 0.0, 4.5]


def test_advantages_and_returns_are_of_what_is_still_to_come() -> None:
    sample, goal = dense_sample()
    sample.values = tensor(1.0, 2.0, 3.0, 7.0)
    set_returns([sample], goal, ALONE.sum_named, Scale())
    # δ: 3.5 − 3 = ½; 0 + ½·3 − 2 = −½; 1.5 + ½·2 − 1 = 1.5. A: ½; −½ + ¼·½; 1.5 + ¼·(−3/8).
    advantages = [1.40625, -0.375, 0.5]
    assert sample.token_advantages is not None
    assert sample.token_advantages.tolist() == advantages
    assert sample.returns is not None
    assert sample.returns.tolist() == [2.40625, 1.625, 3.5]


def test_the_value_after_a_truncated_answer_is_the_critics() -> None:
    cut = {"type": "gae", "whiten": False, "gamma": 0.5, "lambda": 0.5, "bootstrap_truncated": True}
    sample, goal = dense_sample(advantage=cut)
    sample.values = tensor(1.0, 2.0, 3.0, 7.0)
    set_returns([sample], goal, ALONE.sum_named, Scale())
    # The last δ is 3.5 + ½·7 − 3 = 4; then −½ + ¼·4 = ½; 1.5 + ¼·½.
    assert sample.token_advantages is not None
    assert sample.token_advantages.tolist() == [1.625, 0.5, 4.0]


def test_a_discounted_return_is_of_what_tokens_earn() -> None:
    sample, goal = dense_sample(advantage={"type": "global_whiten", "gamma": 0.5}, critic=None)
    found = discounted_returns(token_rewards(sample, goal), 0.5)
    assert found.tolist() == [1.5 + 3.5 / 4, 3.5 / 2, 3.5]


def test_rewards_of_tokens_outside_the_loss_go_to_the_token_before_them() -> None:
    rewards = tensor(1, 2, 4, 8, 16)
    mask = torch.tensor([False, True, False, False, True])
    assert rewards_in_loss(rewards, mask).tolist() == [1 + 2 + 4 + 8, 16]
    assert rewards_in_loss(rewards, torch.zeros(5, dtype=torch.bool)).tolist() == []


def test_without_dense_rewards_the_last_token_gets_the_score() -> None:
    sample, goal = dense_sample()
    sample.rewards = None
    assert token_rewards(sample, goal).tolist() == [0.0, 0.0, 5.0]
