"""Policy losses and KL: values by hand, gradients against the formula in float64."""

import math
from dataclasses import replace

import pytest
import torch

from learner.objective.kl import adapted_beta, kl_estimate
from learner.objective.losses import policy_loss, ratio_of, sequence_mean
from services.contracts.config.objective.terms import (
    AdaptiveBeta,
    CISPOLoss,
    DPPOLoss,
    GSPOLoss,
    Loss,
    PPOLoss,
    ReinforceLoss,
    SAPOLoss,
    SequencePPOLoss,
)
from tests.unit.learner.policies import against_one, logs, tensor


def evaluate(
    config: Loss, ratios: tuple[float, ...], advantages: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """Losses per token, and d(sum of losses)/d(log π), at π_prox = 1 and π = ratio."""
    logprobs = logs(*ratios).requires_grad_()
    result = policy_loss(config, against_one(logprobs, advantages))
    (grad,) = torch.autograd.grad(result.loss.sum(), logprobs)
    return result.loss.tolist(), grad.tolist()


def test_ppo_clips_only_what_would_go_too_far() -> None:
    # ρA against clip(ρ, .8, 1.28)A: 1.5→1.28 (A>0), 0.5 stays (A>0), 1.5 stays (A<0), .5→.8 (A<0)
    loss, grad = evaluate(
        PPOLoss(epsilon_low=0.2, epsilon_high=0.28), (1.5, 0.5, 1.5, 0.5), (2, 2, -1, -1)
    )
    assert loss == pytest.approx([-2.56, -1.0, 1.5, 0.8])
    assert grad == pytest.approx([0.0, -1.0, 1.5, 0.0])


def test_ppo_names_the_side_that_clipped() -> None:
    result = policy_loss(PPOLoss(), against_one(logs(1.5, 0.5, 1.5, 0.5), (2, 2, -1, -1)))
    assert result.clipped_high.tolist() == [True, False, False, False]
    assert result.clipped_low.tolist() == [False, False, False, True]
    assert result.ratio.tolist() == pytest.approx([1.5, 0.5, 1.5, 0.5])


def test_dual_clip_bounds_the_loss_of_bad_tokens() -> None:
    # A = −1, ρ = 10: the loss 10 is cut to c = 3, and with it the gradient. A > 0 is untouched.
    loss, grad = evaluate(PPOLoss(dual_clip=3.0), (10.0, 2.0, 1.0), (-1, -1, 1))
    assert loss == pytest.approx([3.0, 2.0, -1.0])
    assert grad == pytest.approx([0.0, 2.0, -1.0])


def test_on_policy_ppo_has_the_gradient_of_reinforce() -> None:
    _, ppo = evaluate(PPOLoss(), (1.0, 1.0), (2, -3))
    _, reinforce = evaluate(ReinforceLoss(type="reinforce"), (1.0, 1.0), (2, -3))
    assert ppo == reinforce == [-2.0, 3.0]


def test_reinforce_ignores_the_ratio() -> None:
    loss, grad = evaluate(ReinforceLoss(type="reinforce"), (0.5, 0.25), (2, -1))
    assert loss == pytest.approx([-2 * math.log(0.5), math.log(0.25)])
    assert grad == [-2.0, 1.0]


def test_cispo_keeps_every_gradient_with_a_capped_weight() -> None:
    config = CISPOLoss(type="cispo", epsilon_low=1.0, epsilon_high=0.28)
    loss, grad = evaluate(config, (2.0, 0.5), (1, 1))
    assert loss == pytest.approx([-1.28 * math.log(2), -0.5 * math.log(0.5)])
    assert grad == pytest.approx([-1.28, -0.5])


def test_cispo_may_have_a_lower_bound_and_reports_changed_weights() -> None:
    config = CISPOLoss(type="cispo", epsilon_low=0.2, epsilon_high=0.28)
    tokens = against_one(logs(2.0, 0.5, 1.1), (1, -1, -1))
    result = policy_loss(config, tokens)
    # For any sign of A: 1.28, .8, and 1.1 unchanged.
    expected = [-1.28 * math.log(2), 0.8 * math.log(0.5), 1.1 * math.log(1.1)]
    assert result.loss.tolist() == pytest.approx(expected)
    assert result.clipped_high.tolist() == [True, False, False]
    assert result.clipped_low.tolist() == [False, True, False]
    assert result.ratio.tolist() == pytest.approx([2.0, 0.5, 1.1])


def test_gspo_uses_the_geometric_mean_of_each_sequence() -> None:
    # Sequence 0: ρ 4 and 1, mean log ratio log 2. Sequence 1: ρ 1.
    logprobs = logs(4.0, 1.0, 1.0).requires_grad_()
    config = GSPOLoss(type="gspo", epsilon_low=0.9, epsilon_high=9.0)
    result = policy_loss(config, against_one(logprobs, (1, 1, 1), sequences=(0, 0, 1)))
    (grad,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert result.loss.tolist() == pytest.approx([-2.0, -2.0, -1.0])
    assert grad.tolist() == pytest.approx([-2.0, -2.0, -1.0])


def test_log_ratios_are_clamped_before_exp() -> None:
    found = ratio_of(tensor(100, 1, -100)).tolist()
    assert found == pytest.approx([math.exp(20), math.e, math.exp(-20)], rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "values", "slopes"),
    [
        # d = 30 and −30. e^−30 is negligible, and e^30 is bounded at e^20 without losing its
        # gradient.
        ("k1", [30.0, -30.0], [1.0, 1.0]),
        ("k2", [450.0, 450.0], [30.0, -30.0]),
        ("k3", [29.0, math.exp(20) - 21], [1.0, 0.0]),
        ("k3+", [29.0, math.exp(20) - 21], [30.0, -30.0]),
    ],
)
def test_a_token_far_from_the_reference_is_pulled_unless_an_exp_overflows(
    kind: str, values: list[float], slopes: list[float]
) -> None:
    logprobs = tensor(30, -30).requires_grad_()
    kl = kl_estimate(kind, logprobs, tensor(0, 0))  # type: ignore[arg-type]
    (grad,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.tolist() == pytest.approx(values, rel=1e-9)
    assert grad.tolist() == pytest.approx(slopes, rel=1e-9)


def test_gspo_clamps_the_mean_of_a_sequence_and_not_its_tokens() -> None:
    # Log ratios 60 and −58: mean 1. Clamped one by one they would have mean 0.
    config = GSPOLoss(type="gspo", epsilon_low=0.9, epsilon_high=9.0)
    result = policy_loss(config, against_one(tensor(60, -58), (1, 1)))
    assert result.ratio.tolist() == pytest.approx([math.e] * 2, rel=1e-12)
    # The same for the product of their ratios, e^2.
    whole = policy_loss(SequencePPOLoss(type="sequence_ppo"), against_one(tensor(60, -58), (1, 1)))
    assert whole.ratio.tolist() == pytest.approx([math.e**2] * 2, rel=1e-12)


def test_dppo_pulls_a_token_back_however_far_it_is() -> None:
    # log r = 30: 2τ·30 of the pull, and nothing of the gain, whose exp is clamped.
    logprobs = tensor(0).requires_grad_()
    tokens = replace(against_one(logprobs, (-1,)), sampler=tensor(-30))
    result = policy_loss(DPPOLoss(type="dppo", tau=0.01), tokens)
    (grad,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert grad.tolist() == pytest.approx([0.6], rel=1e-12)


def test_a_sequence_without_tokens_has_mean_zero() -> None:
    means = sequence_mean(tensor(1, 3, 5), torch.tensor([0, 0, 2]), 3)
    assert means.tolist() == [2.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("kind", "values", "slopes"),
    [
        # d = log 2 and −log 4.
        ("k1", [math.log(2), -math.log(4)], [1.0, 1.0]),
        ("k2", [math.log(2) ** 2 / 2, math.log(4) ** 2 / 2], [math.log(2), -math.log(4)]),
        ("k3", [0.5 + math.log(2) - 1, 4 - math.log(4) - 1], [0.5, -3.0]),
    ],
)
def test_each_kl_estimate_has_the_value_of_its_formula(
    kind: str, values: list[float], slopes: list[float]
) -> None:
    logprobs = logs(2.0, 0.25).requires_grad_()
    kl = kl_estimate(kind, logprobs, torch.zeros(2, dtype=torch.float64))  # type: ignore[arg-type]
    (grad,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.tolist() == pytest.approx(values)
    assert grad.tolist() == pytest.approx(slopes)


def test_cispo_with_an_absolute_cap_has_no_lower_bound() -> None:
    config = CISPOLoss(type="cispo", epsilon_low=0.1, absolute_cap=5.0)
    loss, grad = evaluate(config, (8.0, 0.01), (1, -1))
    assert loss == pytest.approx([-5 * math.log(8), 0.01 * math.log(0.01)])
    assert grad == pytest.approx([-5.0, 0.01])


def test_sequence_ppo_clips_the_product_of_a_sequence_ratios() -> None:
    # Sequence 0: 1.5 · 0.7 = 1.05, inside ±.1. Sequence 1: 1.2, cut to 1.1 where A > 0, which
    # takes the gradient; sequence 2 with A < 0 keeps it. Each token has its sequence's loss.
    logprobs = logs(1.5, 0.7, 1.2, 1.2).requires_grad_()
    tokens = against_one(logprobs, (2, 2, 1, -1), sequences=(0, 0, 1, 2))
    result = policy_loss(SequencePPOLoss(type="sequence_ppo"), tokens)
    assert result.loss.tolist() == pytest.approx([-2.1, -2.1, -1.1, 1.2])
    assert result.ratio.tolist() == pytest.approx([1.05, 1.05, 1.2, 1.2])
    assert result.clipped_high.tolist() == [False, False, True, False]
    # The mean over sequence 0's two tokens is its loss −2ρ, of slope −2ρ in each log π.
    (grad,) = torch.autograd.grad((result.loss * tensor(0.5, 0.5, 1, 1)).sum(), logprobs)
    assert grad.tolist() == pytest.approx([-2.1, -2.1, 0.0, 1.2])


def test_the_sum_of_a_sequences_log_ratios_is_clamped_too() -> None:
    # 15 and 15: each is inside ±20, their sum is not.
    tokens = against_one(tensor(15, 15), (-1, -1))
    result = policy_loss(SequencePPOLoss(type="sequence_ppo"), tokens)
    assert result.loss.tolist() == pytest.approx([math.exp(20)] * 2)


def test_dppo_drops_tokens_whose_probability_moved_too_far_their_way() -> None:
    # π, μ, A: .5, .2, +: moved up by .3, dropped; .5, .2, −: wrong way, kept; .1, .4, −: dropped;
    # .1, .4, +: kept; .03, .01, +: r = 3, but moved by .02 only: kept.
    logprobs = logs(0.5, 0.5, 0.1, 0.1, 0.03).requires_grad_()
    sampler = logs(0.2, 0.2, 0.4, 0.4, 0.01)
    tokens = replace(against_one(logprobs, (1, -1, -1, 1, 1)), sampler=sampler)
    result = policy_loss(DPPOLoss(type="dppo", delta=0.2, tau=0.1), tokens)
    r = [2.5, 2.5, 0.25, 0.25, 3.0]
    pull = [0.1 * math.log(x) ** 2 for x in r]
    gain = [0.0, -2.5, 0.0, 0.25, 3.0]
    assert result.loss.tolist() == pytest.approx([p - g for p, g in zip(pull, gain, strict=True)])
    assert result.ratio.tolist() == pytest.approx(r)
    assert result.clipped_high.tolist() == [True, False, False, False, False]
    assert result.clipped_low.tolist() == [False, False, True, False, False]
    # d/d log π: r for the gain, 2τ log r for the pull.
    (grad,) = torch.autograd.grad(result.loss.sum(), logprobs)
    slopes = [0.2 * math.log(x) - g for x, g in zip(r, gain, strict=True)]
    assert grad.tolist() == pytest.approx(slopes)


def test_dppo_does_not_ask_the_proximal_policy() -> None:
    tokens = replace(against_one(logs(0.5, 0.1), (1, -1)), sampler=logs(0.4, 0.2))
    elsewhere = replace(tokens, proximal=logs(0.01, 0.9))
    config = DPPOLoss(type="dppo")
    assert policy_loss(config, tokens).loss.tolist() == policy_loss(config, elsewhere).loss.tolist()


def test_sapo_fades_the_gradient_by_a_sigmoid_of_the_ratio() -> None:
    # (4/τ)·σ(τ(ρ − 1)): at ρ = 1, 4/τ · ½. Its slope in log π is 4σ(1 − σ)ρ: 1 at ρ = 1.
    config = SAPOLoss(type="sapo", tau_positive=1.0, tau_negative=2.0)
    loss, grad = evaluate(config, (1.0, 1.0, 3.0, 3.0), (1, -1, 1, -1))
    fast, slow = 1 / (1 + math.exp(-4)), 1 / (1 + math.exp(-2))
    assert loss == pytest.approx([-2.0, 1.0, -4 * slow, 2 * fast])
    expected = [-1.0, 1.0, -4 * slow * (1 - slow) * 3, 4 * fast * (1 - fast) * 3]
    assert grad == pytest.approx(expected)


def test_gspo_on_answers_of_one_token_is_ppo() -> None:
    logprobs = logs(1.5, 0.5, 1.5, 0.5, 1.05).requires_grad_()
    tokens = against_one(logprobs, (2, 2, -1, -1, 3), sequences=(0, 1, 2, 3, 4))
    results = [
        policy_loss(config, tokens)
        for config in (
            GSPOLoss(type="gspo", epsilon_low=0.2, epsilon_high=0.28),
            PPOLoss(epsilon_low=0.2, epsilon_high=0.28),
        )
    ]
    grads = [torch.autograd.grad(result.loss.sum(), logprobs)[0].tolist() for result in results]
    assert results[0].loss.tolist() == pytest.approx(results[1].loss.tolist(), rel=1e-12)
    assert grads[0] == pytest.approx(grads[1], rel=1e-12)


def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2() -> None:
    logprobs = logs(2.0, 0.25).requires_grad_()
    kl = kl_estimate("k3+", logprobs, torch.zeros(2, dtype=torch.float64))
    (grad,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.tolist() == pytest.approx([0.5 + math.log(2) - 1, 4 - math.log(4) - 1])
    assert grad.tolist() == pytest.approx([math.log(2), -math.log(4)])


def test_the_expectation_of_k1_and_k3_is_the_kl_itself() -> None:
    # Three outcomes, all of them enumerated: Σ p · estimate = Σ p log(p/q).
    p, q = logs(0.5, 0.3, 0.2), logs(0.2, 0.2, 0.6)
    kl = 0.5 * math.log(2.5) + 0.3 * math.log(1.5) + 0.2 * math.log(1 / 3)
    for kind in ("k1", "k3", "k3+"):
        estimate = kl_estimate(kind, p, q)
        assert float((p.exp() * estimate).sum()) == pytest.approx(kl, rel=1e-12)


def test_on_policy_the_gradient_of_k2_is_that_of_the_kl_and_that_of_k1_is_zero() -> None:
    # π = softmax(z): d KL/d z_j = p_j·(log p_j/q_j − KL). Expectations over all three outcomes.
    z, q = logs(0.5, 0.3, 0.2).requires_grad_(), logs(0.2, 0.2, 0.6)
    p = tensor(0.5, 0.3, 0.2)
    kl = 0.5 * math.log(2.5) + 0.3 * math.log(1.5) + 0.2 * math.log(1 / 3)
    expected = [x * (math.log(x / y) - kl) for x, y in ((0.5, 0.2), (0.3, 0.2), (0.2, 0.6))]
    slopes = {"k1": [0.0] * 3, "k2": expected, "k3+": expected}
    for kind, wanted in slopes.items():
        estimate = kl_estimate(kind, z.log_softmax(0), q)  # type: ignore[arg-type]
        (grad,) = torch.autograd.grad((p * estimate).sum(), z)
        assert grad.tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # Target 4, horizon 100, 20 samples: factor 1 + clip(KL/4 − 1, ±.2) · .2.
        (4.0, 0.1),
        (4.4, 0.1 * 1.02),
        (40.0, 0.1 * 1.04),
        (0.0, 0.1 * 0.96),
    ],
)
def test_beta_follows_the_kl_of_whole_answers(kl: float, expected: float) -> None:
    config = AdaptiveBeta(target=4.0, horizon=100)
    assert adapted_beta(config, 0.1, kl, 20) == pytest.approx(expected, rel=1e-12)
