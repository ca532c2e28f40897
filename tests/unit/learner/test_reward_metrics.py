"""A batch's rewards and lengths as metrics, worked out by hand."""

import numpy as np
import pytest

from learner.metrics.reward_metrics import (
    dataset_metrics,
    outcome_metrics,
    outcome_sums,
    selection_metrics,
)
from services.contracts.pass_at import ks, pass_at
from tests.unit.learner.policies import trajectory_group


def test_rewards_and_lengths_of_two_groups() -> None:
    groups = [
        trajectory_group(
            [1.0, None, 0.0],
            finish_reasons=["stop", "stop", "length"],
            statuses=["correct", "error", "no_answer"],
        ),
        trajectory_group([0.0, 0.0]),
    ]
    groups[1].prompt_tokens = np.arange(5)
    metrics = outcome_metrics(outcome_sums(groups, 3), 3)
    assert metrics["reward/mean"] == pytest.approx(0.25)
    # One 1 and three 0: squared distances .75² + 3 · .25² = .75, over n − 1 = 3.
    assert metrics["reward/std"] == pytest.approx(0.5)
    assert metrics["reward/groups_without_variance"] == 0.5
    assert metrics["reward/missing"] == pytest.approx(0.2)
    assert metrics["reward/no_answer"] == pytest.approx(0.2)
    assert metrics["response/tokens_mean"] == pytest.approx((2 + 3 + 4 + 2 + 3) / 5)
    # Three samples of the prompt [1, 7], and two of one with five tokens.
    assert metrics["prompt/tokens_mean"] == pytest.approx((3 * 2 + 2 * 5) / 5)
    assert metrics["response/truncated"] == pytest.approx(0.2)
    assert "reward/pass_at_1" not in metrics


@pytest.mark.parametrize(
    ("rewards", "alarm"),
    [
        ([[0.0, 0.0], [0.0, None]], 1),
        ([[0.0, 0.0], [0.0, 0.5]], 0),
        ([[1.0, -1.0]], 0),
        ([[None, None]], 0),
    ],
    ids=["all zero", "one is not", "only their mean", "none at all"],
)
def test_a_batch_whose_rewards_are_all_zero_raises_an_alarm(
    rewards: list[list[float | None]], alarm: int
) -> None:
    sums = outcome_sums([trajectory_group(each) for each in rewards], 2)
    assert outcome_metrics(sums, 2)["reward/all_zero"] == alarm


def test_pass_at_k_is_one_minus_the_chance_of_drawing_only_wrong_ones() -> None:
    # 4 samples, 1 right: drawing 2, C(3,2)/C(4,2) = 3/6 are all wrong.
    assert [pass_at(k, 4, 1) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert pass_at(2, 4, 0) == 0.0
    assert ks(6) == [1, 2, 4, 6]


def test_pass_at_k_is_averaged_over_groups_with_all_their_rewards() -> None:
    groups = [
        trajectory_group([1.0, 0.0], statuses=["correct", "wrong"]),
        trajectory_group([0.0, 0.0], statuses=["wrong", "wrong"]),
        trajectory_group([1.0, None], statuses=["correct", "error"]),
    ]
    metrics = outcome_metrics(outcome_sums(groups, 2), 2)
    assert metrics["reward/pass_at_1"] == 0.25
    assert metrics["reward/pass_at_2"] == 0.5


def test_each_of_several_components_has_its_own_mean_over_what_it_scored() -> None:
    group = trajectory_group(
        [1.5, 0.5],
        components={"math": [1.0, 0.0], "format": [0.5, None], "judge": [None, None]},
    )
    metrics = outcome_metrics(outcome_sums([group], 2), 2)
    assert metrics["reward/component/math"] == 0.5
    assert metrics["reward/component/format"] == 0.5
    assert "reward/component/judge" not in metrics


def test_groups_need_not_have_the_same_components() -> None:
    groups = [
        trajectory_group([1.0], components={"format": [1.0], "format/tags": [0.5]}),
        trajectory_group([0.0], components={"format": [0.0]}),
    ]
    metrics = outcome_metrics(outcome_sums(groups, 1), 1)
    assert metrics["reward/component/format"] == 0.5
    assert metrics["reward/component/format/tags"] == 0.5


def test_groups_that_were_filtered_count_in_what_was_sampled() -> None:
    groups = [
        trajectory_group([1.0, None, 0.0]),
        # Chosen from four samples, one of them right.
        trajectory_group([1.0, 0.0], sampled_reward=0.25),
    ]
    # Two more were filtered: one all right, one all wrong.
    metrics = selection_metrics(outcome_sums(groups, 2), 2, 1.0 + 0.0)
    assert metrics == {
        "reward/groups_filtered": 0.5,
        "reward/mean_sampled": (0.5 + 0.25 + 1.0 + 0.0) / 4,
    }


def test_each_dataset_of_a_mixture_has_its_own_means() -> None:
    groups = [
        trajectory_group([1.0, 0.0, None], statuses=["correct", "wrong", "error"]),
        trajectory_group([0.25, 0.75], statuses=["scored", "scored"]),
        trajectory_group([0.0], statuses=["wrong"], finish_reasons=["length"]),
    ]
    for group, name in zip(groups, ("sums", "essays", "sums"), strict=True):
        group.header.dataset = name

    found = dataset_metrics(
        outcome_sums(groups, 2), ["sums", "essays", "none"], {"filtered sums": 3}
    )

    assert found == pytest.approx(
        {
            "dataset/share/sums": 2 / 3,
            "dataset/reward/sums": 1 / 3,
            "dataset/pass_rate/sums": 1 / 3,
            "dataset/tokens/sums": (2 + 3 + 4 + 2) / 4,
            "dataset/truncated/sums": 1 / 4,
            "dataset/filtered/sums": 3 / 5,
            "dataset/share/essays": 1 / 3,
            "dataset/reward/essays": 0.5,
            "dataset/tokens/essays": 2.5,
            "dataset/truncated/essays": 0.0,
            "dataset/share/none": 0.0,
        }
    )


def test_sessions_have_turns_branches_and_tokens_that_were_not_sampled() -> None:
    group = trajectory_group([1.0, 0.0])
    assert not [n for n in outcome_metrics(outcome_sums([group], 2), 2) if n.startswith("session/")]
    group.turns, group.branches = np.array([3, 1]), np.array([[0, 1, 2]])
    metrics = outcome_metrics(outcome_sums([group, group], 2), 2)
    # One token of each sample is not the policy's.
    assert metrics["session/turns"] == 2
    assert metrics["session/fork_rate"] == 1 / 4
    assert metrics["session/tool_tokens"] == 1
