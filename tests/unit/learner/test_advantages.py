"""Estimators over a group and over a batch, with hand-computed values in float64."""

import math

import pytest
import torch

from learner.objective.advantages import discounted_returns, group_advantages, whitened
from services.contracts.config.objective.terms import (
    Advantage,
    GlobalWhiten,
    GroupMean,
    GroupZScore,
    LeaveOneOut,
)
from tests.unit.learner.policies import tensor

NAN = float("nan")


def advantages(config: Advantage, *rewards: float) -> list[float]:
    return group_advantages(config, torch.tensor(rewards, dtype=torch.float64)).tolist()


MEAN, ZSCORE, LOO = GroupMean(type="group_mean"), GroupZScore(), LeaveOneOut(type="leave_one_out")


def test_group_mean_is_the_difference_from_the_mean() -> None:
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


def test_leave_one_out_of_two_is_the_pairwise_difference() -> None:
    assert advantages(LOO, 0.75, -1.5) == [2.25, -2.25]


def test_whitening_starts_from_rewards_or_from_their_difference_from_the_group_mean() -> None:
    plain = GlobalWhiten(type="global_whiten")
    assert advantages(plain, 1, NAN, 0, 3) == [1.0, 0.0, 0.0, 3.0]
    assert advantages(plain, 5) == [5.0]
    baseline = GlobalWhiten(type="global_whiten", baseline=True)
    # Mean 4/3 of the three rewards that are not missing.
    expected = [-1 / 3, 0.0, -4 / 3, 5 / 3]
    assert advantages(baseline, 1, NAN, 0, 3) == pytest.approx(expected, rel=1e-12)


def test_a_return_is_the_discounted_sum_of_what_follows() -> None:
    # Last 2 − .5; before it −.25 + .9 · 1.5; first −1 + .9 · 1.1.
    returns = discounted_returns(tensor(-1.0, -0.25, 2.0 - 0.5), 0.9)
    assert returns.tolist() == pytest.approx([-1 + 0.9 * 1.1, 1.1, 1.5], rel=1e-12)


def test_without_discount_every_token_returns_the_reward() -> None:
    assert discounted_returns(tensor(0, 0, 0.75), 1.0).tolist() == [0.75] * 3


def test_whitening_is_over_tokens_with_the_unbiased_deviation() -> None:
    # Tokens 1, 1, 4: mean 2, squared distances 1 + 1 + 4 = 6 over 2: deviation √3.
    scale = math.sqrt(3) + 1e-6
    first, second = whitened([tensor(1, 1), tensor(4)], ["", ""], lambda sums: sums)
    assert first.tolist() == pytest.approx([-1 / scale] * 2, rel=1e-12)
    assert second.tolist() == pytest.approx([2 / scale], rel=1e-12)


def test_whitening_of_groups_compares_the_tokens_of_each_group() -> None:
    # Group 5 has tokens 1, 1, 4 as above; group 6 has 10 and 12: mean 11, deviation √2.
    three, two = math.sqrt(3) + 1e-6, math.sqrt(2) + 1e-6
    samples, groups = [tensor(1, 1), tensor(10), tensor(4), tensor(12)], ["5", "6", "5", "6"]
    found = [one.tolist() for one in whitened(samples, groups, lambda sums: sums)]
    assert found == [
        pytest.approx([-1 / three] * 2, rel=1e-12),
        pytest.approx([-1 / two], rel=1e-12),
        pytest.approx([2 / three], rel=1e-12),
        pytest.approx([1 / two], rel=1e-12),
    ]
    # The mean that is added again is the group's mean.
    kept = whitened(samples, groups, lambda sums: sums, keep_mean=True)
    assert kept[1].tolist() == pytest.approx([11 - 1 / two], rel=1e-12)


def test_whitening_one_token_or_a_constant_batch_gives_zero() -> None:
    assert whitened([tensor(3)], [""], lambda sums: sums)[0].tolist() == [0.0]
    (constant,) = whitened([tensor(*[0.1] * 7)], [""], lambda sums: sums)
    assert constant.tolist() == pytest.approx([0.0] * 7, abs=1e-9)
