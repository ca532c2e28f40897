"""The canary of a version: what the learner's log-probabilities of a few fixed sequences are under
it. vLLM's must be the same, or it serves other weights.

The sequences are random tokens, the same in every process: only how large the vocabulary is and how
long a sequence may be decide them. So a manifest carries numbers alone (less than a kilobyte).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# The class is in a module without numpy, so that commands need not import numpy.
from services.contracts.weights import Canary

__all__ = [
    "CANARY",
    "LENGTHS",
    "SEED",
    "SHORTEST",
    "Canary",
    "Floats",
    "in_float32",
    "packed",
    "sequences",
    "unpacked",
]

LENGTHS = (136, 32)
"""Tokens of each sequence. The first is longer than a block of any of vLLM's prefix caches but
those of hybrid models (16 to 128 tokens), and 128 is a whole number of them."""
SHORTEST = 4
"""The shortest context that has a canary."""
SEED = 15
CANARY = "canary"
"""In the metadata of a weight file: the version's canary as JSON."""

Floats = npt.NDArray[np.float32]


def in_float32(published: str, sampler: str) -> bool:
    """Whether learner and vLLM both compute in float32. `published`: the type of the published
    weights; `sampler`: that vLLM computes in, `auto` for the same."""
    return published == "float32" and sampler in ("auto", "float32")


def sequences(vocabulary: int, longest: int) -> list[list[int]]:
    """Return the canary's token ids, or an empty list if `longest` is below `SHORTEST`."""
    if longest < SHORTEST:
        return []
    random = np.random.Generator(np.random.PCG64(SEED))
    return [random.integers(vocabulary, size=min(n, longest)).tolist() for n in LENGTHS]


def packed(logprobs: Sequence[float] | Floats) -> bytes:
    """As in a Canary."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def unpacked(logprobs: bytes) -> Floats:
    """The inverse. Raises ValueError for bytes that are no whole number of values."""
    return np.frombuffer(logprobs, dtype="<f4")
