"""Policy losses, corrections and KL: values by hand, gradients against the formula in float64."""

import math

import pytest
import torch

from learner.corrections import correction_weights
from learner.kl import kl_estimate
from learner.losses import log_ratio, policy_loss, sequence_mean
from services.contracts.config.algorithm import (
    CISPOLoss,
    GSPOLoss,
    Loss,
    MaskCorrection,
    NoCorrection,
    PPOLoss,
    ReinforceLoss,
    TruncateCorrection,
)

ONE = torch.zeros(4, dtype=torch.int64)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def evaluate(
    config: Loss, ratios: tuple[float, ...], advantages: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    """Losses per token, and d(sum of losses)/d(log π), at π_prox = 1 and π = ratio."""
    logprobs = logs(*ratios).requires_grad_()
    result = policy_loss(
        config, logprobs, torch.zeros_like(logprobs), tensor(*advantages), ONE[: len(ratios)], 1
    )
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
    result = policy_loss(
        PPOLoss(), logs(1.5, 0.5, 1.5, 0.5), torch.zeros(4), tensor(2, 2, -1, -1), ONE, 1
    )
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


def test_gspo_uses_the_geometric_mean_of_each_sequence() -> None:
    # Sequence 0: ρ 4 and 1, mean log ratio log 2. Sequence 1: ρ 1.
    logprobs = logs(4.0, 1.0, 1.0).requires_grad_()
    config = GSPOLoss(type="gspo", epsilon_low=0.9, epsilon_high=9.0)
    result = policy_loss(
        config, logprobs, torch.zeros(3), tensor(1, 1, 1), torch.tensor([0, 0, 1]), 2
    )
    (grad,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert result.loss.tolist() == pytest.approx([-2.0, -2.0, -1.0])
    assert grad.tolist() == pytest.approx([-2.0, -2.0, -1.0])


def test_log_ratios_are_clamped_before_exp() -> None:
    assert log_ratio(tensor(100, -100), tensor(0, 0)).tolist() == [20.0, -20.0]


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
def test_kl_estimates(kind: str, values: list[float], slopes: list[float]) -> None:
    logprobs = logs(2.0, 0.25).requires_grad_()
    kl = kl_estimate(kind, logprobs, torch.zeros(2, dtype=torch.float64))  # type: ignore[arg-type]
    (grad,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.tolist() == pytest.approx(values)
    assert grad.tolist() == pytest.approx(slopes)


def corrected(config: object, sampler_is_proximal: bool = False) -> tuple[list[float], list[bool]]:
    """w = π_prox/μ is 0.4, 1, 4 in one sequence; π/μ is 8, 1, 1."""
    result = correction_weights(
        config,  # type: ignore[arg-type]
        logprobs=logs(8, 1, 1),
        proximal_logprobs=logs(0.4, 1, 4),
        sampler_logprobs=torch.zeros(3, dtype=torch.float64),
        sequence=ONE[:3],
        n=1,
        sampler_is_proximal=sampler_is_proximal,
    )
    return result.weights.tolist(), (result.low | result.high).tolist()


def test_no_correction_counts_every_token_once() -> None:
    assert corrected(NoCorrection()) == ([1.0, 1.0, 1.0], [False, False, False])


def test_truncation_caps_the_weight() -> None:
    weights, cut = corrected(TruncateCorrection(type="truncate", cap=2.0))
    assert weights == pytest.approx([0.4, 1.0, 2.0])
    assert cut == [False, False, True]


def test_a_mask_takes_tokens_outside_its_bounds_out() -> None:
    weights, cut = corrected(MaskCorrection(type="mask", low=0.5, high=5.0))
    assert weights == pytest.approx([0.0, 1.0, 4.0])
    assert cut == [True, False, False]


def test_at_sequence_level_the_geometric_mean_decides() -> None:
    # (0.4 · 1 · 4)^(1/3)
    weights, _ = corrected(MaskCorrection(type="mask", low=0.5, high=5.0, level="sequence"))
    assert weights == pytest.approx([1.6 ** (1 / 3)] * 3)


def test_with_the_sampler_as_proximal_a_mask_looks_at_the_policy() -> None:
    result = correction_weights(
        MaskCorrection(type="mask", low=0.5, high=5.0),
        logprobs=logs(8, 1, 0.1),
        proximal_logprobs=torch.zeros(3, dtype=torch.float64),
        sampler_logprobs=torch.zeros(3, dtype=torch.float64),
        sequence=ONE[:3],
        n=1,
        sampler_is_proximal=True,
    )
    assert result.weights.tolist() == [0.0, 1.0, 0.0]
    assert result.high.tolist() == [True, False, False]
    assert result.low.tolist() == [False, False, True]


def test_a_correction_has_no_gradient() -> None:
    logprobs = logs(2, 1, 1).requires_grad_()
    result = correction_weights(
        TruncateCorrection(type="truncate"), logprobs, logprobs, torch.zeros(3), ONE[:3], 1, False
    )
    assert not result.weights.requires_grad
