"""Estimates how large a formula becomes when SymPy computes it.

SymPy computes powers, factorials and binomials of numbers to the last digit, and expands powers of
sums: `9^{9^9}` never ends. The estimate computes nothing.
"""

from math import comb, log2
from typing import Any

from sympy import Add, Float, MatrixBase, Mul, Pow, Rational, binomial, factorial

_MOST_BITS = 200_000
_MOST_TERMS = 300


def is_endless(value: Any) -> bool:
    """Tell whether SymPy would take seconds to compute `value`, or never end."""
    return _bits(value) > _MOST_BITS


def _bits(value: Any) -> float:
    """Return about how many bits the largest number in `value` has when it is computed."""
    if isinstance(value, Rational):
        return log2(max(abs(value.p), value.q))
    if isinstance(value, Float):
        _, _, exponent, length = value._mpf_
        return float(abs(exponent) + length)
    args: list[Any] = [
        *(value.flat() if isinstance(value, MatrixBase) else getattr(value, "args", ()))
    ]
    bits = [_bits(arg) for arg in args]
    size = max(bits, default=0.0)
    if isinstance(value, Mul):
        return sum(bits)
    if isinstance(value, Add):
        return size + log2(len(args))
    if isinstance(value, Pow):
        times = _largest(value.exp)
        terms = len(value.base.args) if isinstance(value.base, Add) else 1
        if comb(min(int(times), _MOST_BITS) + terms - 1, terms - 1) > _MOST_TERMS:
            return _MOST_BITS + 1
        return max(size, bits[0] * times)
    if isinstance(value, factorial):
        count = _largest(args[0])
        return count * log2(count + 1)
    if isinstance(value, binomial):
        count, chosen = map(_largest, args)
        return max(size, min(count, chosen * log2(count + 1)))
    return size


def _largest(value: Any) -> float:
    """Return about the size of `value`."""
    return 2.0 ** min(_bits(value), 64) if not isinstance(value, Rational) else abs(float(value))
