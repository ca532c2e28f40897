"""From verifiers' scores to rewards: gates, clips, weights, broken verifiers."""

from typing import Any

import pytest
from pydantic import ValidationError

from rollout.rewards.combine import AnswerText, Due, SampleScore, combine, due, score_items
from services.contracts.config import ConfigError, parse_config
from services.contracts.config.rewards import RewardComponent, named
from services.contracts.rows.dataset import Row
from services.contracts.scores import ScoreResult, ScoreStatus


def rewards(*given: dict[str, Any]) -> dict[str, RewardComponent]:
    return named([RewardComponent.model_validate(one) for one in given])


def result(status: str, reward: float | None, **components: float) -> ScoreResult:
    return ScoreResult(id="0", status=ScoreStatus(status), reward=reward, components=components)


GATED = rewards(
    {"verifier": "math"},
    {"verifier": "judge", "only_if": {"component": "math", "at_least": 1}},
    {"verifier": "length", "only_if": {"component": "judge", "at_least": 0.5}},
)


def test_each_completion_is_scored_by_every_verifier_sample_by_sample() -> None:
    both = rewards({"verifier": "math"}, {"verifier": "format", "params": {"tag": "think"}})

    row = Row(prompt="2+2", answer=4, columns={"level": "easy"})
    items = score_items(
        both,
        "2+2=",
        row,
        17,
        [AnswerText("4"), AnswerText("5", "<think>", True)],
        due(both, [{}, {}]),
    )

    assert [item.id for item in items] == ["0/math", "0/format", "1/math", "1/format"]
    assert [item.verifier for item in items] == ["math", "format"] * 2
    assert [item.completion for item in items] == ["4", "4", "5", "5"]
    assert [item.prefill for item in items] == ["", "", "<think>", "<think>"]
    assert [item.truncated for item in items] == [False, False, True, True]
    assert items[1].params == {"tag": "think"}
    assert all((item.answer, item.prompt, item.row) == (4, "2+2=", 17) for item in items)
    assert all(item.columns == {"level": "easy"} for item in items)


def test_a_gate_opens_for_the_samples_that_reached_its_value() -> None:
    right, wrong = {"math": result("correct", 1.0)}, {"math": result("wrong", 0.0)}

    assert due(GATED, [{}, {}]) == [Due(0, "math"), Due(1, "math")]
    assert due(GATED, [right, wrong]) == [Due(0, "judge")]
    good = right | {"judge": result("scored", 0.5)}
    assert due(GATED, [good, wrong]) == [Due(0, "length")]
    assert due(GATED, [right | {"judge": result("scored", 0.49)}, wrong]) == []


def test_a_gate_on_a_broken_verifier_stays_shut() -> None:
    assert due(GATED, [{"math": result("error", None)}]) == []


def test_a_reward_with_a_closed_gate_adds_nothing_and_is_unknown() -> None:
    score = combine(GATED, {"math": result("correct", 1.0), "judge": result("scored", 0.0)})

    assert score == SampleScore(1.0, "correct", {"math": 1.0, "judge": 0.0, "length": None})


def test_the_reward_is_the_weighted_sum_and_components_stay_unweighted() -> None:
    both = rewards({"verifier": "math", "weight": 2.0}, {"verifier": "format", "weight": 0.5})

    score = combine(both, {"math": result("correct", 1.0), "format": result("partial", 0.5)})

    assert score == SampleScore(2.25, "correct", {"math": 1.0, "format": 0.5})


def test_a_component_is_clipped_before_its_weight_and_gates_see_it_whole() -> None:
    clipped = rewards(
        {"verifier": "model", "clip": [-3, 3], "weight": 2},
        {"verifier": "math", "only_if": {"component": "model", "at_least": 5}},
    )
    assert due(clipped, [{"model": result("scored", 7.0)}]) == [Due(0, "math")]
    for said, counted in ((7.0, 3.0), (-9.0, -3.0), (1.5, 1.5)):
        score = combine(clipped, {"model": result("scored", said)})
        assert (score.reward, score.components["model"]) == (2 * counted, counted)


def test_parts_are_named_after_their_component() -> None:
    form = rewards({"verifier": "format", "name": "form", "weight": 2})

    score = combine(form, {"form": result("partial", 0.75, pattern=0.5, tags=0.25)})

    assert score.components == {"form": 0.75, "form/pattern": 0.5, "form/tags": 0.25}
    assert score.reward == 1.5


def test_one_broken_verifier_makes_the_reward_unknown_not_smaller() -> None:
    both = rewards({"verifier": "math"}, {"verifier": "format"})

    broken = combine(both, {"math": result("correct", 1.0), "format": result("error", None)})

    assert (broken.reward, broken.status) == (None, "error")
    assert broken.components == {"math": 1.0, "format": None}


def test_the_first_reward_decides_whether_an_answer_is_correct() -> None:
    both = rewards({"verifier": "math"}, {"verifier": "format"})

    score = combine(both, {"math": result("wrong", 0.0), "format": result("scored", 1.0)})

    assert (score.reward, score.status) == (1.0, "wrong")


def test_a_verifier_used_twice_has_two_names() -> None:
    assert list(rewards(*({"verifier": v} for v in ("math", "tag", "tag")))) == [
        *("math", "tag", "tag#2")
    ]


def problem(*given: dict[str, Any]) -> str:
    config = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": list(given)}
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    ((_, message),) = caught.value.problems
    return message


def test_duplicate_reward_names_and_gates_on_unknown_rewards_are_refused() -> None:
    assert "two rewards are called 'tag#2'" in problem(
        {"verifier": "tag"}, {"verifier": "x", "name": "tag#2"}, {"verifier": "tag"}
    )
    later = {"verifier": "a", "only_if": {"component": "b", "at_least": 1}}
    assert "only_if.component 'b', which is no earlier reward; it is the first" in (
        problem(later, {"verifier": "b"})
    )
    assert "there is c" in problem({"verifier": "c"}, later, {"verifier": "b"})
    with pytest.raises(ValidationError, match=r"clip \[1.0, 0.0\] is not \[least, most\]"):
        RewardComponent.model_validate({"verifier": "a", "clip": [1, 0]})
