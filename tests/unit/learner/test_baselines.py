"""Running means of rewards by prompt key, with hand-computed values."""

import pytest
import torch

from learner.objective import baselines
from learner.objective.advantages import group_advantages
from learner.objective.baselines import Baselines, GroupReward, Mean
from services.contracts.config.objective.terms import RunningMean

DECAY = 0.75


def batch(*earned: tuple[str, float]) -> list[GroupReward]:
    return [GroupReward(key, reward) for key, reward in earned]


def test_the_first_batch_is_compared_with_its_own_mean() -> None:
    rewards = batch(("a", 1), ("", 0), ("b", 0.5), ("", 0.5))
    before = Baselines().begun(rewards)
    assert [before.of(one.key) for one in rewards] == [0.5] * 4
    assert before.metrics(rewards) == {"baseline/mean": 0.5, "baseline/known_keys": 0}
    # But not the later batches.
    after = before.after(rewards, DECAY)
    assert after.begun(batch(("a", 7))) == after


def test_first_rewards_count_alike_and_later_ones_decay() -> None:
    mean, seen = Mean(0.0, 0), []
    for reward in (1, 0, 0.5, 0.5, 0.5, 1):
        mean = mean.with_reward(reward, DECAY)
        seen.append(mean.value)
    # 1; (1 + 0)/2; (1 + 0 + 0.5)/3; /4; from the fifth on a quarter of the difference.
    assert seen == pytest.approx([1, 0.5, 0.5, 0.5, 0.5, 0.625])
    assert mean.rewards == 6


def test_a_new_key_begins_at_the_mean_of_all_as_one_reward() -> None:
    before = Baselines(Mean(0.5, 4), {"a": Mean(0.25, 1)})
    after = before.after(batch(("a", 1), ("b", 1), ("a", 1), ("", 0)), DECAY)
    # a: 1/4 + (3/4)/2 = 5/8, then + (3/8)/3 = 3/4. b: 1/2 + (1/2)/2.
    assert after.keys == {"b": (0.75, 2), "a": pytest.approx((0.75, 3))}
    # All: 1/2 + 1/8 = 5/8; + 3/32 = 23/32; + 9/128 = 101/128; − 101/512 = 303/512.
    assert after.overall == pytest.approx((303 / 512, 8))
    assert before.keys == {"a": Mean(0.25, 1)}, "the batch's own means have changed"
    rewards = batch(("a", 0), ("c", 0))
    assert after.metrics(rewards) == {
        "baseline/mean": pytest.approx((0.75 + 303 / 512) / 2),
        "baseline/known_keys": 0.5,
    }


def test_the_keys_trained_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_KEYS", 2)
    state = Baselines().after(batch(("a", 1), ("b", 1)), DECAY).after(batch(("a", 1)), DECAY)
    assert list(state.after(batch(("c", 1)), DECAY).keys) == ["a", "c"]


def test_a_group_of_one_learns_from_a_running_mean() -> None:
    config = RunningMean(type="running_mean")
    rewards = torch.tensor([1.0, float("nan"), 0.25], dtype=torch.float64)
    assert group_advantages(config, rewards, 0.25).tolist() == [0.75, 0.0, 0.0]
    assert group_advantages(config, rewards[:1], 1.5).tolist() == [-0.5]
