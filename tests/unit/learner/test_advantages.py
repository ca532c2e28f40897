"""Group estimators, by values worked out by hand in float64."""

import math

import pytest
import torch

from learner.advantages import group_advantages, shaped_rewards
from services.contracts.config.algorithm import Advantage, GroupMean, GroupZScore, LeaveOneOut

NAN = float("nan")


def advantages(config: Advantage, *rewards: float) -> list[float]:
    return group_advantages(config, torch.tensor(rewards, dtype=torch.float64)).tolist()


MEAN, ZSCORE, LOO = GroupMean(type="group_mean"), GroupZScore(), LeaveOneOut(type="leave_one_out")


def test_group_mean_is_the_distance_from_the_mean() -> None:
    assert advantages(MEAN, 1, 0, 0, 3) == [0.0, -1.0, -1.0, 2.0]


def test_zscore_divides_by_the_unbiased_deviation_plus_epsilon() -> None:
    # Mean 1, squared distances 0 + 1 + 1 + 4 = 6, over n − 1 = 3: deviation √2.
    scale = math.sqrt(2) + 1e-6
    expected = [0.0, -1 / scale, -1 / scale, 2 / scale]
    assert advantages(ZSCORE, 1, 0, 0, 3) == pytest.approx(expected, rel=1e-12)


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    # 1 − 3/3, 0 − 4/3, 0 − 4/3, 3 − 1/3.
    assert advantages(LOO, 1, 0, 0, 3) == pytest.approx([0, -4 / 3, -4 / 3, 8 / 3], rel=1e-12)


@pytest.mark.parametrize("config", [MEAN, ZSCORE, LOO], ids=lambda c: c.type)
def test_a_group_of_one_has_nothing_to_compare_with(config: Advantage) -> None:
    assert advantages(config, 5) == [0.0]
    assert advantages(config, NAN, 5, NAN) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("config", [MEAN, ZSCORE, LOO], ids=lambda c: c.type)
def test_a_constant_group_teaches_nothing_in_float32_too(config: Advantage) -> None:
    rewards = torch.full((7,), 0.1)
    assert group_advantages(config, rewards).tolist() == [0.0] * 7


@pytest.mark.parametrize("config", [MEAN, ZSCORE, LOO], ids=lambda c: c.type)
def test_a_missing_reward_gets_zero_and_leaves_the_statistics(config: Advantage) -> None:
    with_hole = advantages(config, 1, NAN, 0, 0, 3)
    without = advantages(config, 1, 0, 0, 3)
    assert with_hole == [without[0], 0.0, *without[1:]]


@pytest.mark.parametrize("config", [MEAN, ZSCORE, LOO], ids=lambda c: c.type)
def test_the_order_of_samples_does_not_matter(config: Advantage) -> None:
    forward = advantages(config, 1, 0, 2, 5)
    assert advantages(config, 5, 2, 0, 1)[::-1] == pytest.approx(forward, rel=1e-12)


def test_rewards_are_clipped_on_both_sides_and_stay_missing() -> None:
    shaped = shaped_rewards(torch.tensor([-3.0, 0.5, NAN, 9.0]), 2.0)
    assert shaped[[0, 1, 3]].tolist() == [-2.0, 0.5, 2.0]
    assert math.isnan(shaped[2])
