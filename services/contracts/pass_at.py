"""pass@k: the chance that at least one of k answers to a question is right."""

from math import comb

EVERY = 32


def ks(samples: int) -> list[int]:
    """The k that are reported: powers of two up to `samples`, and `samples` itself."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


def every_k(samples: int) -> list[int]:
    """The k that an evaluation reports: all up to EVERY, and beyond as `ks`."""
    return sorted({*range(1, min(samples, EVERY) + 1), *ks(samples)})


def pass_at(k: int, n: int, correct: int) -> float:
    """Chance that at least one of `k` samples is right, estimated without bias from `correct` of
    `n` (Chen et al. 2021)."""
    return 1.0 - comb(n - correct, k) / comb(n, k)
