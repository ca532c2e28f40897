"""Off-policy corrections: values by hand, in float64."""

from dataclasses import replace

import pytest
import torch

from learner.objective.off_policy import correction_weights, loglinear_proximal
from services.contracts.config.objective.terms import (
    Correction,
    MaskCorrection,
    NoCorrection,
    OffPolicySequenceMask,
    TruncateCorrection,
)
from tests.unit.learner.policies import against_one, logs, tensor


def corrected(config: Correction) -> tuple[list[float], list[bool]]:
    """w = π_prox/μ is 0.4, 1, 4 in one sequence; π/μ is 8, 1, 1."""
    tokens = replace(against_one(logs(8, 1, 1), (1, 1, 1)), proximal=logs(0.4, 1, 4))
    result = correction_weights(config, tokens, sampler_is_proximal=False)
    return result.weights.tolist(), (result.low | result.high).tolist()


def test_no_correction_counts_every_token_once() -> None:
    assert corrected(NoCorrection()) == ([1.0, 1.0, 1.0], [False, False, False])


def test_truncation_caps_the_weight() -> None:
    weights, cut = corrected(TruncateCorrection(type="truncate", cap=2.0))
    assert weights == pytest.approx([0.4, 1.0, 2.0])
    assert cut == [False, False, True]


def test_a_mask_drops_tokens_outside_its_bounds() -> None:
    weights, cut = corrected(MaskCorrection(type="mask", low=0.5, high=5.0))
    assert weights == pytest.approx([0.0, 1.0, 4.0])
    assert cut == [True, False, False]


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (0.25, 1.0)])
def test_the_bounds_of_a_mask_are_inside_it(low: float, high: float) -> None:
    weights, cut = corrected(MaskCorrection(type="mask", low=low, high=high))
    assert weights[1] == 1.0
    assert not cut[1]


def test_truncation_may_be_of_the_geometric_mean() -> None:
    mean = 1.6 ** (1 / 3)
    weights, cut = corrected(TruncateCorrection(type="truncate", cap=2.0, level="sequence"))
    assert weights == pytest.approx([mean] * 3)
    assert cut == [False] * 3
    weights, cut = corrected(TruncateCorrection(type="truncate", cap=1.1, level="sequence"))
    assert weights == pytest.approx([1.1] * 3)
    assert cut == [True] * 3


def test_at_sequence_level_the_geometric_mean_decides() -> None:
    # (0.4 · 1 · 4)^(1/3)
    weights, _ = corrected(MaskCorrection(type="mask", low=0.5, high=5.0, level="sequence"))
    assert weights == pytest.approx([1.6 ** (1 / 3)] * 3)


def test_with_the_sampler_as_proximal_a_mask_looks_at_the_policy() -> None:
    tokens = against_one(logs(8, 1, 0.1), (1, 1, 1))
    result = correction_weights(
        MaskCorrection(type="mask", low=0.5, high=5.0), tokens, sampler_is_proximal=True
    )
    assert result.weights.tolist() == [0.0, 1.0, 0.0]
    assert result.high.tolist() == [True, False, False]
    assert result.low.tolist() == [False, False, True]


def test_at_sequence_level_with_the_sampler_as_proximal_a_mask_looks_at_the_policys_mean() -> None:
    # Sequence 0: 8 and ½, mean 2. Sequence 1: 6.
    tokens = against_one(logs(8, 0.5, 6), (1, 1, 1), sequences=(0, 0, 1))
    config = MaskCorrection(type="mask", low=0.75, high=5.0, level="sequence")
    result = correction_weights(config, tokens, sampler_is_proximal=True)
    assert result.weights.tolist() == [1.0, 1.0, 0.0]


def test_a_correction_has_no_gradient() -> None:
    logprobs = logs(2, 1, 1).requires_grad_()
    tokens = replace(against_one(logprobs, (1, 1, 1)), proximal=logprobs)
    result = correction_weights(TruncateCorrection(type="truncate"), tokens, False)
    assert not result.weights.requires_grad


def test_a_sequence_mask_drops_answers_whose_geometric_mean_is_off() -> None:
    # (1.02 · 0.99)^½ = 1.00489…, inside [.99, 1.01]; (1.02 · 1.01)^½ = 1.01499 is not.
    tokens = against_one(logs(1, 1, 1, 1), (1, 1, 1, 1), sequences=(0, 0, 1, 1))
    tokens = replace(tokens, proximal=logs(1.02, 0.99, 1.02, 1.01))
    config = MaskCorrection(type="mask", low=0.99, high=1.01, level="sequence")
    result = correction_weights(config, tokens, sampler_is_proximal=False)
    mean = (1.02 * 0.99) ** 0.5
    assert result.weights.tolist() == pytest.approx([mean, mean, 0.0, 0.0])
    assert result.high.tolist() == [False, False, True, True]


def test_the_off_policy_mask_drops_bad_answers_that_the_policy_has_left() -> None:
    # mean(log μ − log π) = log 2 for sequences 0 and 1, and only 0 has a bad advantage; log 1.1 for
    # 2.
    logprobs = logs(0.25, 1.0, 0.5, 1 / 1.1)
    tokens = against_one(logprobs, (-1, -1, 1, -1), sequences=(0, 0, 1, 2))
    config = OffPolicySequenceMask(type="off_policy_sequence_mask", delta=0.5)
    for sampler_is_proximal in (True, False):
        result = correction_weights(config, tokens, sampler_is_proximal)
        assert result.weights.tolist() == [0.0, 0.0, 1.0, 1.0]
        assert result.low.tolist() == [True, True, False, False]


def test_loglinear_goes_d_parts_of_d_plus_one_from_the_sampler_to_the_policy() -> None:
    # log μ = 0 and −1, log π = −3 and 1: d = 0 stays at μ; d = 3 goes three quarters of the way.
    policy = tensor(-3.0, -3.0, 1.0).requires_grad_()
    sampler = tensor(0.0, 0.0, -1.0)
    proximal = loglinear_proximal(policy, sampler, torch.tensor([0, 3, 1]))
    assert proximal.tolist() == [0.0, -2.25, 0.0]
    assert not proximal.requires_grad


def test_a_proximal_policy_that_is_the_sampler_leaves_every_weight_at_one() -> None:
    tokens = against_one(logs(0.7, 1.4), (1, -1))
    for config in (
        TruncateCorrection(type="truncate", cap=1.0),
        TruncateCorrection(type="truncate", cap=1.0, level="sequence"),
        MaskCorrection(type="mask"),
    ):
        assert correction_weights(config, tokens, False).weights.tolist() == [1.0, 1.0]


def test_the_mean_of_a_sequence_is_of_all_its_log_ratios_however_large() -> None:
    # log μ − log π is 40 and −10: mean 15, and 5 if the first were clamped to 20.
    tokens = against_one(tensor(-40, 10), (-1, -1))
    for delta, weight in ((14.0, 0.0), (16.0, 1.0)):
        config = OffPolicySequenceMask(type="off_policy_sequence_mask", delta=delta)
        result = correction_weights(config, tokens, sampler_is_proximal=True)
        assert result.weights.tolist() == [weight] * 2
