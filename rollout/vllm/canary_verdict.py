"""Whether vLLM serves the version that the learner published, by its log-probabilities of the
canary's sequences. Pure.

Three findings are possible. The log-probabilities differ by more than sampler and learner usually
do. Or they fit another version better than this one. Or they are exactly those that vLLM gave under
another version, although the learner's have changed. The last two find weights that were left where
they were, also where one version differs from the next by less than rounding does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from services.contracts.canary import Canary, Floats, in_float32, sequences, unpacked

FLOAT32, OTHERWISE = 0.005, 0.3
"""Largest mean difference in nats that is usual, where both sides compute in float32, and else
(docs/decisions.md has what was measured)."""
KNOWN_AFTER, TIMES = 4, 8
"""After so many versions, so many times the usual difference of this server and model is enough."""
NEARER = 2.0
"""How many times nearer, as a root mean square, another version has to be."""
ROUNDING = 0.02
"""A difference of this part of the limit is rounding: then no other version is looked for."""
CHANGED = 0.5
"""Share of the learner's values that must have changed before equal ones of vLLM count."""
LARGEST = 20.0
"""Nats that one token counts for at most."""


@dataclass(frozen=True)
class Known:
    """What is known of one version, or of the model without its adapter."""

    name: str
    expected: Floats
    """By the learner."""
    found: Floats | None = None
    """By vLLM, when it served it."""
    lineage: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a score says."""

    gap: float
    """Mean absolute difference in nats."""
    problem: str = ""
    """In words; '': vLLM serves the version."""


def limit_for(
    canary: Canary, dtype: str, configured: float | None, gaps: Sequence[float] = ()
) -> float:
    """Nats by which vLLM may differ on average. `dtype`: of the sampler; `configured`:
    `rollout.canary_limit`; `gaps`: of the last versions that were right."""
    if configured is not None:
        return configured
    exact = in_float32(canary.dtype, dtype)
    if exact or len(gaps) < KNOWN_AFTER:
        return FLOAT32 if exact else OTHERWISE
    return min(OTHERWISE, max(FLOAT32, TIMES * median(gaps)))


def prompts(canary: Canary) -> list[list[int]]:
    """The sequences to be scored."""
    return sequences(canary.vocabulary, canary.longest)


def expected(canary: Canary) -> Floats:
    """The learner's values. Raises ValueError for a damaged canary."""
    values = unpacked(canary.logprobs)
    wanted = sum(len(one) - 1 for one in prompts(canary))
    if len(values) != wanted:
        raise ValueError(f"the canary has {len(values)} values for {wanted} tokens")
    return values


def judge(version: Known, limit: float, others: Iterable[Known]) -> Verdict:
    """Compare what vLLM found with what the learner expected, and with `others`."""
    found = version.found
    assert found is not None
    gap = float(_distances(found, version.expected).mean())
    comparable = [one for one in others if len(one.expected) == len(version.expected)]
    nearest = min(comparable, key=lambda one: _far(found, one), default=version)
    far = _far(found, version)
    if far > ROUNDING * limit and NEARER * _far(found, nearest) < far:
        return Verdict(gap, f"they are those of {nearest.name}")
    for other in comparable:
        # Of one lineage only: another process may compute other values for equal weights.
        if other.lineage == version.lineage and _unchanged(version, other):
            return Verdict(gap, f"they have not changed since {other.name}")
    if gap > limit:
        return Verdict(gap, f"they differ by {gap:.3g} nats on average; up to {limit:g} is usual")
    return Verdict(gap)


def _distances(found: Floats, expected: Floats) -> Floats:
    distances: Floats = np.minimum(np.abs(found - expected), LARGEST)
    return distances


def _far(found: Floats, version: Known) -> float:
    """Root mean square of the distances, in nats."""
    return float(np.sqrt(np.square(_distances(found, version.expected)).mean()))


def _unchanged(version: Known, other: Known) -> bool:
    if version.found is None or other.found is None:
        return False
    changed = float(np.mean(version.expected != other.expected))
    return changed > CHANGED and np.array_equal(version.found, other.found)
