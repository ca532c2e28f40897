"""Choosing the completions of a prompt to train, and the groups to filter."""

import pytest

from rollout.work.filtering import chosen, filter_reason
from services.contracts.config.objective.selection import BestOf, DynamicSampling

REWARDS = [0.0, 1.0, 0.5, 1.0, 0.0]
LENGTHS = [4, 4, 9, 7, 5]
# From best to worst, the longer of two equals first: 3 (1.0, 7), 1 (1.0, 4), 2, 4 (0, 5), 0 (0, 4).


@pytest.mark.parametrize(
    ("keep", "k", "indices"),
    [
        ("best", 1, [3]),
        ("best", 3, [1, 2, 3]),
        ("best", 4, [1, 2, 3, 4]),
        ("worst", 1, [0]),
        ("worst", 3, [0, 2, 4]),
        ("both", 2, [0, 3]),
        ("both", 3, [0, 1, 3]),
    ],
)
def test_chosen_completions_stay_in_the_order_of_sampling(
    keep: str, k: int, indices: list[int]
) -> None:
    best_of = BestOf.model_validate({"generation_size": 5, "keep": keep})
    assert chosen(best_of, REWARDS, LENGTHS, k) == indices


@pytest.mark.parametrize("keep", ["best", "worst", "both"])
def test_a_completion_without_a_reward_is_chosen_last(keep: str) -> None:
    best_of = BestOf.model_validate({"generation_size": 4, "keep": keep})
    assert chosen(best_of, [None, -1.0, None, 1.0], [9, 1, 9, 1], 2) == [1, 3]
    assert chosen(best_of, [None, -1.0, None, 1.0], [9, 1, 9, 1], 3) == [0, 1, 3]


def test_a_group_with_two_different_rewards_has_a_signal() -> None:
    config = DynamicSampling()
    assert filter_reason(config, [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]) is None
    assert filter_reason(config, [0.0, None, 0.1], [0.0, None, 0.1]) is None


def test_a_group_of_equal_rewards_has_no_signal() -> None:
    config = DynamicSampling()
    assert filter_reason(config, [1.0, 1.0], [1.0, 1.0]) == "all its rewards are 1"
    missing = [0.5, None, None]
    assert filter_reason(config, missing, missing) == (
        "all its rewards are 0.5, and 2 samples have none"
    )


def test_a_group_is_filtered_by_the_rewards_of_trained_completions() -> None:
    assert filter_reason(DynamicSampling(), [1.0, 1.0], [1.0, 0.0, 1.0, 0.0]) == (
        "all its rewards are 1"
    )


def test_too_hard_and_too_easy_are_decided_by_all_samples() -> None:
    config = DynamicSampling(low=0.25, high=0.75)
    both = [0.0, 1.0]
    # One of four right is 0.25, three of four 0.75: both are on the edge, so the group stays.
    assert filter_reason(config, both, [0.0, 0.0, 0.0, 1.0]) is None
    assert filter_reason(config, both, [0.0, 1.0, 1.0, 1.0]) is None
    assert filter_reason(config, both, [0.0, 0.0, 0.0, 0.0, 1.0]) == (
        "its mean reward 0.2 is below algorithm.dynamic_sampling.low 0.25"
    )
    assert filter_reason(config, both, [0.0, 1.0, 1.0, 1.0, 1.0, None]) == (
        "its mean reward 0.8 is above algorithm.dynamic_sampling.high 0.75"
    )
