"""Bounds on the difference between sampler and learner."""

import pytest

from learner.metrics.mismatch_alarm import mismatch_problem


def row(gap: float, kl: float) -> dict[str, float]:
    return {"mismatch/logprob_max": gap, "mismatch/kl": kl}


@pytest.mark.parametrize(
    ("dtype", "sampler", "quantized", "usual", "high"),
    [
        ("float32", "auto", False, row(9e-4, 1.0), row(1.1e-3, 0.0)),
        ("float32", "float32", False, row(3e-5, 1.0), row(0.037, 1e-6)),
        ("float32", "bfloat16", False, row(5.0, 0.009), row(0.1, 0.011)),
        ("bfloat16", "auto", False, row(5.0, 0.009), row(0.1, 0.011)),
        ("bfloat16", "bfloat16", True, row(5.0, 0.04), row(0.1, 0.06)),
        ("float32", "auto", False, {}, row(float("nan"), 0.0)),
    ],
)
def test_a_mismatch_above_the_bound_of_the_types_is_described(
    dtype: str, sampler: str, quantized: bool, usual: dict[str, float], high: dict[str, float]
) -> None:
    assert mismatch_problem(usual, dtype, sampler, quantized) == ""
    problem = mismatch_problem(high, dtype, sampler, quantized)
    exact = "float32" in (sampler, dtype) and "bfloat16" not in (sampler, dtype)
    assert ("mismatch/logprob_max is" if exact else "mismatch/kl is") in problem


def test_a_batch_without_answers_of_its_own_version_has_no_mismatch() -> None:
    assert mismatch_problem({"step": 3}, "float32", "auto", False) == ""
