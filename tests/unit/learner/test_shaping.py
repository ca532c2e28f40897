"""Scores from rewards, worked out by hand."""

import pytest
import torch

from learner.objective.shaping import shaped_rewards
from services.contracts.config.objective.shaping import Shaping

NAN = float("nan")


def scores(
    config: Shaping,
    rewards: list[float],
    ended: list[bool] | None = None,
    lengths: list[int] | None = None,
    max_tokens: int = 10,
) -> list[float]:
    n = len(rewards)
    shaped = shaped_rewards(
        config,
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(ended or [True] * n),
        torch.tensor(lengths or [5] * n),
        max_tokens,
    )
    return shaped.tolist()


def test_shaping_without_configuration_changes_nothing() -> None:
    assert scores(Shaping(), [1.0, -2.5], [False, True], [1, 10]) == [1.0, -2.5]


def test_bias_comes_off_before_the_scale_and_the_clip_comes_last() -> None:
    # (4 − 1)·2 = 6 → 5; (0 − 1)·2 = −2; (−9 − 1)·2 = −20 → −5.
    config = Shaping(scale=2.0, bias=1.0, max_reward_clip=5.0)
    assert scores(config, [4.0, 0.0, -9.0]) == [5.0, -2.0, -5.0]


def test_the_penalty_replaces_the_score_and_is_not_clipped() -> None:
    config = Shaping(
        max_reward_clip=2.0, penalise_no_eos=True, min_response_length=4, reward_penalty=-3.0
    )
    given = scores(config, [9.0, 9.0, 9.0, 9.0], [True, False, True, True], [5, 5, 3, 4])
    assert given == [2.0, -3.0, -3.0, 2.0]


def test_only_short_answers_are_penalised_if_configured_so() -> None:
    config = Shaping(min_response_length=4, reward_penalty=-1.0)
    assert scores(config, [1.0, 1.0], [False, True], [9, 3]) == [1.0, -1.0]


def test_an_answer_without_end_scores_zero_with_mask_no_eos_with_zero() -> None:
    config = Shaping(mask_no_eos_with_zero=True)
    assert scores(config, [1.0, -1.0, 1.0], [False, False, True]) == [0.0, 0.0, 1.0]


def test_the_overlong_penalty_grows_linearly_through_the_buffer() -> None:
    # L = 10, buffer 4: nothing up to 6, then a quarter of the factor per token.
    config = Shaping(overlong_buffer=4, overlong_factor=2.0)
    assert scores(config, [1.0] * 4, None, [3, 6, 7, 10]) == [1.0, 1.0, 0.5, -1.0]


def test_a_missing_reward_stays_missing() -> None:
    config = Shaping(penalise_no_eos=True, reward_penalty=-1.0, overlong_buffer=4)
    one, missing = scores(config, [1.0, NAN], [True, False], [3, 10])
    assert (one, str(missing)) == (1.0, "nan")


@pytest.mark.parametrize(
    ("shaping", "said"),
    [
        ({"penalise_no_eos": True}, "set reward_penalty"),
        ({"min_response_length": 3}, "set reward_penalty"),
        ({"reward_penalty": -1.0}, "reward_penalty -1.0 is never used"),
        ({"scale": 0.0}, "scale 0 makes every reward 0"),
        (
            {"penalise_no_eos": True, "reward_penalty": -1, "mask_no_eos_with_zero": True},
            "leave mask_no_eos_with_zero out, or penalise_no_eos",
        ),
    ],
)
def test_contradictory_shaping_is_refused(shaping: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Shaping.model_validate(shaping)
