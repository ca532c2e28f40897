"""The answers of a batch that are logged, and their rows."""

import pytest

from learner.batch.samples import group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.metrics.sample_log import choose, described, pick
from learner.model.loading.scratch import UNKNOWN
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    GAE,
    Advantage,
    GlobalWhiten,
    GroupMean,
    ReverseKL,
    SequenceValue,
)
from services.contracts.groups.sampled_answer import SampledAnswer
from tests.unit.learner.policies import tiny_model, trajectory_group

MEAN = Algorithm(advantage=GroupMean(type="group_mean"))
ELSEWHERE: list[Advantage] = [
    GlobalWhiten(type="global_whiten"),
    GAE(type="gae"),
    SequenceValue(type="sequence_value"),
    ReverseKL(type="reverse_kl"),
]
"""Estimators that keep a sample's reward in its advantage."""


@pytest.mark.parametrize(
    ("step", "chosen"),
    [
        # The best and the worst of group 0, then sample 2 % 3 of group 1 and of group 0.
        (2, [(0, 1), (0, 0), (1, 2), (0, 2)]),
        # Rewards of group 1 are all equal, so it has one answer; then sample 3 % 3 of each, then 4
        # % 3.
        (3, [(1, 2), (0, 0), (1, 0), (0, 1)]),
    ],
)
def test_the_best_and_the_worst_of_one_group_and_one_of_each_other(
    step: int, chosen: list[tuple[int, int]]
) -> None:
    rewards = [[0.1, 0.9, 0.5], [1.0, 1.0, 1.0]]

    assert choose(rewards, step, 4) == chosen
    assert choose(rewards, step, 2) == chosen[:2]


def test_each_completion_is_chosen_at_most_once() -> None:
    assert sorted(choose([[0.0, 1.0], [1.0, None]], 7, 64)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert choose([[None, None]], 1, 4) == [(0, 1), (0, 0)]
    assert choose([[0.0, 1.0]], 1, 0) == []
    # A rank without a share of the batch.
    assert choose([], 1, 4) == []


def test_an_answer_is_logged_as_sampled_with_its_rewards() -> None:
    # Prompt [1, 7]; the answers are 10 11 and 10 11 12.
    tokenizer = tiny_model().tokenizer
    group = trajectory_group(
        [0.25, 1.0],
        components={"math": [0.0, 1.0], "format": [0.5, None]},
        reasons=[{"math": "4 against 5"}, {"math": "5 against 5"}],
        reference="5",
    )
    samples = group_samples(group, MEAN, 9, token_staleness(group, Ancestry((("a", 0),)), 3))

    (best, worst) = described(pick([group], samples, 4, 2), 4, MEAN, tokenizer)

    bos, digit, *answer = tokenizer.convert_ids_to_tokens([1, 7, 10, 11, 12])
    assert bos == "<bos>"
    assert SampledAnswer(**best) == SampledAnswer(
        step=4,
        task=5,
        row=3,
        prompt=bos + digit,
        completion="".join(answer),
        reference="5",
        reasons={"math": "5 against 5"},
        tokens=3,
        reward=1.0,
        status="correct",
        components={"math": 1.0, "format": None},
        advantage=0.375,
        finish_reason="stop",
        versions=[1, 2],
    )
    assert (worst["reward"], worst["advantage"]) == (0.25, -0.375)
    assert (worst["completion"], worst["versions"]) == ("".join(answer[:2]), [1])


def test_special_tokens_are_kept_and_no_blank_is_tidied_away() -> None:
    tokenizer = tiny_model().tokenizer
    group = trajectory_group([1.0])
    group.tokens[:] = tokenizer.convert_tokens_to_ids([UNKNOWN, "<eos>"])
    samples = group_samples(group, MEAN, 9, token_staleness(group, Ancestry((("a", 0),)), 3))

    (only,) = described(pick([group], samples, 1, 4), 1, MEAN, tokenizer)

    assert only["completion"] == "<unk><eos>"


def test_an_answer_without_an_advantage_of_its_own_says_so() -> None:
    tokenizer = tiny_model().tokenizer
    group = trajectory_group([1.0, None, 0.0])
    samples = group_samples(group, MEAN, 9, token_staleness(group, Ancestry((("a", 0),)), 3))
    picked = pick([group], samples, 1, 3)

    by_reward = {row["reward"]: row["advantage"] for row in described(picked, 1, MEAN, tokenizer)}

    # The sample whose verifier broke is not in the loss.
    assert by_reward == {1.0: 0.5, 0.0: -0.5, None: None}
    for advantage in ELSEWHERE:
        found = described(picked, 1, MEAN.model_copy(update={"advantage": advantage}), tokenizer)
        assert [row["advantage"] for row in found] == [None, None, None], advantage.type
