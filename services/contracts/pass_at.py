"""pass@k: the chance that at least one of k answers to a question is right."""

from math import comb


def ks(samples: int) -> list[int]:
    """The k that are reported: powers of two up to `samples`, and `samples` itself."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


def pass_at(k: int, n: int, correct: int) -> float:
    """Chance that at least one of `k` samples is right, estimated without bias from `correct` of
    `n` (Chen et al. 2021)."""
    return 1.0 - comb(n - correct, k) / comb(n, k)
