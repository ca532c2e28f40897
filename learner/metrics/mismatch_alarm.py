"""Check that sampler and learner compute the same policy from the same weights. Pure.

A large difference means that one side computes wrongly, so the trained policy did not sample these
answers. The run continues with a warning, because a corrected objective tolerates a mismatch.
"""

from collections.abc import Mapping
from typing import Any

from services.contracts.canary import in_float32

EXACT_LOGPROB = 1e-3
"""Nats of one token, if both sides compute in float32. Measured: at most 3e-5."""
HALF_KL = 0.01
"""Nats a token on average (`mismatch/kl`), if one side computes in bfloat16 or float16."""
QUANTIZED_KL = 0.05
"""Nats a token on average, if vLLM quantises the weights."""


def mismatch_problem(row: Mapping[str, Any], dtype: str, sampler: str, quantized: bool) -> str:
    """Describe a mismatch in a step's metrics that is above its bound. Return '' without one.

    `dtype`, `sampler`: see `in_float32`.
    """
    exact = in_float32(dtype, sampler)
    name, bound = "mismatch/kl", QUANTIZED_KL if quantized else HALF_KL
    if exact:
        name, bound = "mismatch/logprob_max", EXACT_LOGPROB
    value = row.get(name)
    # A NaN is above each bound.
    if value is None or value <= bound:
        return ""
    computed = "float32" if exact else "a quantised type" if quantized else "a half type"
    return (
        f"sampler and learner disagree about the same weights: {name} is {value:.3g} nats, and up "
        f"to {bound:g} is usual in {computed}. The trained policy is not the one that sampled: "
        "look at mismatch/canary and at the workers' vLLM logs (docs/operate.md)"
    )
