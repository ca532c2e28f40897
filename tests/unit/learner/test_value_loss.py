"""The targets and losses of a critic, with hand-computed values in float64."""

import math
from dataclasses import replace

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.batch.token_advantages import set_returns
from learner.objective.advantages import discounted_returns, generalised_advantages
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments, Scale, value_loss
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import (
    AverageNormalisation,
    ExponentialNormalisation,
    HuberValueLoss,
    SquaredValueLoss,
)
from tests.unit.learner.policies import tensor
from tests.unit.learner.unigrams import ALONE

REWARDS = tensor(-0.5, 0.25, 2.0)
VALUES = tensor(1.0, 0.5, -1.0)


def test_an_advantage_is_the_decayed_sum_of_temporal_differences() -> None:
    # δ: −.5 + .9 · .5 − 1 = −1.05; .25 + .9 · (−1) − .5 = −1.15; 2 + 0 + 1 = 3.
    # γλ = .45: A_3 = 3, A_2 = −1.15 + .45 · 3 = .2, A_1 = −1.05 + .45 · .2 = −.96.
    found = generalised_advantages(REWARDS, VALUES, 0.0, 0.9, 0.5)
    assert found.tolist() == pytest.approx([-0.96, 0.2, 3.0], rel=1e-12)


def test_a_value_after_the_last_token_is_as_good_as_a_reward_there() -> None:
    # δ_3 = 2 + .9 · 10 + 1 = 12.
    found = generalised_advantages(REWARDS, VALUES, 10.0, 0.9, 0.0)
    assert found.tolist() == pytest.approx([-1.05, -1.15, 12.0], rel=1e-12)


def test_with_lambda_and_gamma_1_it_is_the_return_less_the_value_whatever_the_values() -> None:
    # Monte Carlo: all that is still to come, 1.75, 2.25 and 2.
    to_come = tensor(1.75, 2.25, 2.0)
    for values in (VALUES, 100 * VALUES):
        found = generalised_advantages(REWARDS, values, 0.0, 1.0, 1.0)
        assert torch.allclose(found + values, to_come, rtol=1e-12)


def test_without_values_it_is_the_discounted_return() -> None:
    nothing = torch.zeros(3, dtype=torch.float64)
    found = generalised_advantages(REWARDS, nothing, 0.0, 0.9, 1.0)
    assert torch.equal(found, discounted_returns(REWARDS, 0.9))


def sample(**fields: object) -> TrainingSample:
    """A sample of reward 2, with two tokens in the loss around one that is not. The critic's values
    are .5, 1, 3."""
    return replace(
        TrainingSample(
            tokens=torch.tensor([1, 7, 8, 9]),
            loss_mask=torch.tensor([False, True, False, True]),
            sampler_logprobs=torch.tensor([-1.0, -2.0]),
            staleness=torch.zeros(2, dtype=torch.int64),
            advantage=2.0,
            task=0,
            number=0,
            group_lengths=(2,),
            values=tensor(0.5, 1.0, 3.0),
        ),
        **fields,  # type: ignore[arg-type]
    )


def returned(
    given: TrainingSample,
    scale: Scale = Scale(),  # noqa: B008
    **algorithm: object,
) -> list[list[float]]:
    """Advantages and returns."""
    goal = Objective(Algorithm.model_validate({"critic": {}, **algorithm}), 1.0, 12)
    set_returns([given], goal, ALONE.sum_named, scale)
    assert given.token_advantages is not None
    assert given.returns is not None
    return [given.token_advantages.tolist(), given.returns.tolist()]


def gae(**changes: object) -> dict[str, object]:
    return {"type": "gae", "gamma": 1.0, "lambda": 0.5, "whiten": False} | changes


def test_the_reward_is_on_the_last_token_in_the_loss_and_others_are_passed_over() -> None:
    # δ_2 = 2 − 1 = 1, δ_1 = 0 + 1 − .5 = .5; A_1 = .5 + .5 · 1 = 1. Returns: A + V.
    assert returned(sample(), advantage=gae()) == [[1.0, 1.0], [1.5, 2.0]]


def test_the_kl_in_the_reward_is_taken_off_each_token() -> None:
    # d = 1 and −1, β = .5: rewards −.5 and 2.5. δ_2 = 1.5, δ_1 = 0; A_1 = .75.
    given = sample(reference_logprobs=torch.tensor([-2.0, -1.0]))
    found = returned(given, advantage=gae(), kl={"type": "k1_in_reward", "beta": 0.5})
    assert found == [[0.75, 1.5], [1.25, 2.5]]


def test_only_a_truncated_completion_has_a_value_after_its_end_and_only_on_request() -> None:
    # δ_2 = 2 + 3 − 1 = 4, A_1 = .5 + 2.
    bootstrap = gae(bootstrap_truncated=True)
    assert returned(sample(truncated=True), advantage=bootstrap)[0] == [2.5, 4.0]
    assert returned(sample(), advantage=bootstrap)[0] == [1.0, 1.0]
    assert returned(sample(truncated=True), advantage=gae())[0] == [1.0, 1.0]


def test_the_score_at_the_end_is_compared_with_the_value_there() -> None:
    # δ_end = 2 − 3 = −1, δ_2 = 0 + 3 − 1 = 2, δ_1 = 0 + 1 − .5 = .5. A_2 = 2 + .5 · (−1) = 1.5,
    # A_1 = .5 + .5 · 1.5 = 1.25. Returns: A + V, and the score at the end.
    at_end = gae(score_at="end")
    assert returned(sample(), advantage=at_end) == [[1.25, 1.5], [1.75, 2.5, 2.0]]
    # A truncated completion has no end.
    assert returned(sample(truncated=True), advantage=at_end) == [[1.0, 1.0], [1.5, 2.0]]
    # Tokens keep the rewards that they earned, here .25 for the first; the end has the remainder.
    # δ_end = 1.75 − 3 = −1.25, δ_2 = 2, δ_1 = .75; A_2 = 1.375, A_1 = 1.4375.
    dense = sample(rewards=tensor(0.25, 0.0))
    assert returned(dense, advantage=at_end)[0] == [1.4375, 1.375]


def test_values_count_in_units_of_reward_and_returns_are_taken_before_whitening() -> None:
    # The critic's outputs are .5 and 1 in units of 2 around 1, so its values are 2 and 3. δ_2 = −1,
    # δ_1 = 1.
    scaled = Scale(1.0, 2.0)
    found = returned(sample(), scaled, advantage=gae())
    assert found == [[0.5, -1.0], [2.5, 2.0]]
    # Advantages .5 and −1: mean −.25, deviation √(2 · .75²) = .75 √2.
    apart = 0.75 / (0.75 * math.sqrt(2) + 1e-6)
    found = returned(sample(), scaled, advantage=gae(whiten=True))
    assert found[0] == pytest.approx([apart, -apart], rel=1e-12)
    assert found[1] == [2.5, 2.0]
    found = returned(sample(), scaled, advantage=gae(whiten=True, keep_mean=True))
    assert found[0] == pytest.approx([apart - 0.25, -apart - 0.25], rel=1e-12)


def test_the_value_of_a_whole_completion_is_that_of_its_last_token() -> None:
    # The output is 3 in units of .5 around −1: a value of .5, for a reward of 2.
    found = returned(sample(), Scale(-1.0, 0.5), advantage={"type": "sequence_value"})
    assert found == [[1.5, 1.5], [2.0]]


def test_the_value_loss_is_the_larger_one_with_and_without_the_clip() -> None:
    said = tensor(1.0, 1.0, 0.1, -0.3).requires_grad_()
    before = tensor(0.0, 0.0, 0.0, 0.0)
    target = tensor(2.0, 0.0, 2.0, -1.0)
    loss, clipped = value_loss(SquaredValueLoss(clip_range=0.2), said, before, target)
    # Clipped to .2, .2, .1, −.2: ½ · 1.8², ½ · 1², ½ · 1.9², ½ · .8².
    assert loss.tolist() == pytest.approx([1.62, 0.5, 1.805, 0.32], rel=1e-12)
    assert clipped.tolist() == [True, False, False, True]
    loss.sum().backward()
    assert said.grad is not None
    # A value beyond the clip has no gradient if it went towards its target, and has one if it went
    # away.
    assert said.grad.tolist() == pytest.approx([0.0, 1.0, -1.9, 0.0], rel=1e-12)


def test_without_a_clip_the_value_loss_is_half_the_square() -> None:
    loss, clipped = value_loss(SquaredValueLoss(clip_range=None), tensor(1), tensor(0), tensor(3))
    assert (loss.tolist(), clipped.tolist()) == ([2.0], [False])


def test_the_huber_loss_goes_on_in_a_straight_line() -> None:
    config = HuberValueLoss(type="huber", delta=2.0, clip_range=None)
    # ½ · 1², and 2 · (5 − 1).
    loss, _ = value_loss(config, tensor(1, 5), tensor(0, 0), tensor(0, 0))
    assert loss.tolist() == [0.5, 8.0]


def test_exponential_moments_are_those_of_the_first_batch_and_then_move_slowly() -> None:
    config = ExponentialNormalisation(beta=0.75)
    first = Moments().after(config, 2, 1 + 3, 1 + 9)
    assert first.scale(config) == Scale(2.0, 1.0)
    # A batch of one 10: weights .75 · .25 and .25, that is 3/7 and 4/7.
    second = first.after(config, 1, 10, 100)
    mean, square = (3 * 2 + 4 * 10) / 7, (3 * 5 + 4 * 100) / 7
    scale = second.scale(config)
    assert scale.mean == pytest.approx(mean, rel=1e-12)
    assert scale.deviation == pytest.approx(math.sqrt(square - mean**2), rel=1e-12)


def test_average_moments_count_every_return_alike() -> None:
    config = AverageNormalisation(type="average")
    moments = Moments().after(config, 3, 3, 3).after(config, 1, 5, 25)
    # 1, 1, 1, 5: mean 2, mean square 7.
    assert moments.scale(config) == Scale(2.0, math.sqrt(3))


def test_units_are_0_and_1_before_the_first_return_and_constant_returns_have_a_floor() -> None:
    config = ExponentialNormalisation(eps=0.04)
    assert Moments().scale(config) == Scale(0.0, 1.0)
    assert Moments().after(config, 0, 0, 0) == Moments()
    constant = Moments().after(config, 2, 2, 2).scale(config)
    assert constant.mean == pytest.approx(1.0)
    assert constant.deviation == pytest.approx(0.2)
    assert Moments(1.0, 5.0, 30.0).scale(None) == Scale(0.0, 1.0)


def test_units_and_values_are_inverse() -> None:
    scale = Scale(3.0, 2.0)
    assert scale.value(tensor(-1, 0, 2)).tolist() == [1, 3, 7]
    assert scale.target(tensor(1, 3, 7)).tolist() == [-1, 0, 2]


def test_a_success_that_is_too_rare_is_learned_as_five_deviations() -> None:
    # One of n rewards is 1 and the others are 0: the success is (1 − 1/n) / √((n − 1)/n²) = √(n −
    # 1) deviations from the mean: 5 for n = 26 (3.8 %), 9.95 for n = 100.
    clipped = ExponentialNormalisation(clip=5.0)
    for n, learned in ((26, 5.0), (100, 5.0), (10, 3.0)):
        scale = Moments().after(clipped, n, 1, 1).scale(clipped)
        assert scale.target(tensor(1)).tolist() == pytest.approx([learned], rel=1e-12)
    free = ExponentialNormalisation()
    assert Moments().after(free, 100, 1, 1).scale(free).target(tensor(1)).tolist() == (
        pytest.approx([math.sqrt(99)], rel=1e-12)
    )
    # With one 0 among 100 rewards, the failure is −9.95.
    scale = Moments().after(clipped, 100, 99, 99).scale(clipped)
    assert scale.target(tensor(0)).tolist() == [-5.0]
