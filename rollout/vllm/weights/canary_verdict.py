"""Judges from log-probabilities of the canary whether vLLM serves the published version. Pure.

There are three findings. The log-probabilities differ from the learner's by more than is usual. Or
they fit another version better. Or they equal those of another version exactly, although the
learner's have changed. The last two find weights that a load left unchanged, even if two versions
differ by less than rounding.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from services.contracts.canary import Canary, Floats, in_float32, sequences, unpacked

FLOAT32, OTHERWISE = 0.005, 0.3
"""Largest usual mean difference in nats: if both sides compute in float32, and otherwise, unless
the model is deep (docs/decisions.md has the measurements)."""
UNIT, SPARE = 2**-8, 5.0
"""Rounding of bfloat16, and how many times the difference of two roundings is still usual."""
KNOWN_AFTER, TIMES = 4, 8
"""After KNOWN_AFTER versions the limit is TIMES the usual difference of this server and model."""
NEARER = 2.0
"""Another version must be this many times nearer, as a root mean square."""
ROUNDING = 0.02
"""A difference below this part of the limit is rounding: no other version is searched."""
CHANGED = 0.5
"""Share of the learner's values that must have changed before equal values of vLLM are a
problem."""
LARGEST = 20.0
"""The most nats that one token counts for."""


@dataclass(frozen=True)
class VersionScores:
    """The log-probabilities of one version, or of the model without its adapter."""

    name: str
    expected: Floats
    """The learner's values."""
    served: Floats | None = None
    """vLLM's values when it served this version."""
    lineage: str = ""


class CanaryVerdict(NamedTuple):
    gap: float
    """Mean absolute difference in nats."""
    problem: str = ""
    """In words; '' if vLLM serves the version."""


def limit_for(
    canary: Canary,
    dtype: str,
    configured: float | None,
    gaps: Sequence[float] = (),
    layers: int = 0,
) -> float:
    """Return the mean difference in nats that vLLM may have. `dtype` is the sampler's type;
    `configured` is `rollout.canary_limit`; `gaps` are those of recent versions that were right;
    `layers`: those of the model."""
    if configured is not None:
        return configured
    if in_float32(canary.dtype, dtype):
        return FLOAT32
    most = max(OTHERWISE, rounding(unpacked(canary.logprobs), layers))
    if len(gaps) < KNOWN_AFTER:
        return most
    return min(most, max(FLOAT32, TIMES * median(gaps)))


def rounding(logprobs: Floats, layers: int) -> float:
    """Return the largest usual difference in nats between two computations in bfloat16:
    SPARE · UNIT · σ · √layers. Each layer rounds the stream anew, and the errors add up like a
    random walk. σ, the spread of the log-probabilities of random tokens, is that of the logits."""
    spread = float(logprobs.std()) if len(logprobs) else 0.0
    return SPARE * UNIT * spread * math.sqrt(layers)


def expected(canary: Canary) -> Floats:
    """Return the learner's values. Raises ValueError for a damaged canary."""
    values = unpacked(canary.logprobs)
    wanted = sum(len(tokens) - 1 for tokens in sequences(canary.vocabulary, canary.longest))
    if len(values) != wanted:
        raise ValueError(f"the canary has {len(values)} values for {wanted} tokens")
    return values


def judge(version: VersionScores, limit: float, others: Iterable[VersionScores]) -> CanaryVerdict:
    """Compare what vLLM found with what the learner expected, and with `others`."""
    served = version.served
    assert served is not None
    gap = float(_distances(served, version.expected).mean())
    comparable = [other for other in others if len(other.expected) == len(version.expected)]
    nearest = min(comparable, key=lambda other: _far(served, other), default=version)
    far = _far(served, version)
    if far > ROUNDING * limit and NEARER * _far(served, nearest) < far:
        return CanaryVerdict(gap, f"they are those of {nearest.name}")
    for other in comparable:
        # Only within one lineage: another process may compute other values for equal weights.
        if other.lineage == version.lineage and _unchanged(version, other):
            return CanaryVerdict(gap, f"they have not changed since {other.name}")
    if gap > limit:
        differ = f"they differ by {gap:.3g} nats on average; up to {limit:g} is usual"
        return CanaryVerdict(gap, f"{differ} (rollout.canary_limit)")
    return CanaryVerdict(gap)


def _distances(served: Floats, expected: Floats) -> Floats:
    distances: Floats = np.minimum(np.abs(served - expected), LARGEST)
    return distances


def _far(served: Floats, version: VersionScores) -> float:
    """Return the root mean square of the distances, in nats."""
    return float(np.sqrt(np.square(_distances(served, version.expected)).mean()))


def _unchanged(version: VersionScores, other: VersionScores) -> bool:
    if version.served is None or other.served is None:
        return False
    changed = float(np.mean(version.expected != other.expected))
    return changed > CHANGED and np.array_equal(version.served, other.served)
