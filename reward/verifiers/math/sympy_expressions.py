"""Reads and compares mathematical expressions with the math-verify library (and SymPy below it).

The import takes a third of a second: only worker processes import this module (`Verifier.warm`).
The library's own timeouts are off, since they rest on SIGALRM, which C code can ignore for ever.
Call these functions only in a process that may be killed.

Two functions of the library are replaced. `parse` searches a text for anything readable, and takes
a number out of a formula that it cannot parse. Instead, `read_expressions` calls the parser below
it, whose grammar spans the whole text. `sympy_numeric_eq` has absolute tolerances; `_same_number`
replaces it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import grader, parse, verify
from math_verify.grader import And, FiniteSet
from sympy import (
    Basic,
    Eq,
    Expr,
    Float,
    I,
    Intersection,
    Interval,
    MatrixBase,
    MatrixExpr,
    Rational,
    Set,
    Tuple,
    Union,
    expand,
    nan,
    solve,
    zoo,
)
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from reward.verifiers.math.final_answer import too_deep
from reward.verifiers.math.formula_size import is_endless
from reward.verifiers.math.formula_to_latex import has_both_cases, has_degrees, readings
from reward.verifiers.math.plain_number import close

# The library warns once per process that its timeouts are off, and logs what it could not parse.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# Characters. The parser's time grows faster than the length, and no dataset has a longer formula.
_MAX_CHARS = 1000
_LIBRARYS_SOLUTIONS = grader.sympy_solve_and_compare


@lru_cache(maxsize=512)
def read_expressions(text: str) -> list[Any]:
    """Return the readings of `text`, each of the whole formula. Empty if it has no reading.

    The list is cached, since the samples of a group share their reference: do not change it."""
    if not text.strip() or len(text) > _MAX_CHARS or too_deep(text):
        return []
    values = (_read(latex) for latex in readings(text))
    return [value for value in values if isinstance(value, Basic | MatrixBase)]


def _read(latex: str) -> Any:
    """Return the value of `latex`. Return None if the parser fails, or SymPy could not compute the
    value."""
    try:
        value = latex2sympy(
            latex,
            is_real=not grader.should_treat_as_complex(latex),
            convert_degrees=has_degrees(latex),
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=not has_both_cases(latex)),
        )
        return None if is_endless(value) else value
    except Exception:  # The parser raises bare exceptions, and SymPy exceptions of any kind.
        return None


def equal(gold: list[Any], given: list[Any], *, places: int, precision: int, strict: bool) -> bool:
    """Tell whether any reading of the answer equals any reading of the reference. The comparison is
    not symmetric: the reference's form decides what an assignment or an equation stands for."""
    gold, given = _vectors(gold, given), _vectors(given, gold)
    compared = [(gold, given)]
    if any(isinstance(reading, Set) for reading in gold) and any(
        isinstance(reading, Boolean) for reading in given
    ):
        # The library takes an interval for an inequality, but no inequality for an interval.
        compared.append((given, gold))
    if _names(gold) | _names(given) == {"i"}:
        compared.append((_complex(gold), _complex(given)))
    compared = [_in_order(left, right) for left, right in compared]
    compared.append((_solutions(gold), given))
    compared.append((gold, _solutions(given)))
    if any(_same_region(reading, other) for reading in gold for other in given):
        return True
    with _relative_comparison():
        return any(
            math_verify_equals(
                _ordered(left, right),
                _ordered(right, left),
                places=places,
                precision=precision,
                strict=strict,
            )
            for left, right in compared
        )


def math_verify_reads(text: str) -> list[Any]:
    """Return the library's own readings of a text, with its defaults."""
    return list(parse(text, parsing_timeout=None))


def math_verify_equals(
    gold: list[Any], given: list[Any], *, places: int, precision: int, strict: bool
) -> bool:
    """Whether two results of `math_verify_reads` are equal by the library's own verdict."""
    return bool(
        verify(
            gold,
            given,
            float_rounding=places,
            numeric_precision=precision,
            strict=strict,
            timeout_seconds=None,
        )
    )


@contextmanager
def _relative_comparison() -> Iterator[None]:
    """Let the library compare numbers with `_same_number`, also in lists, matrices and intervals.
    Solutions of equations go through `_same_solutions`. A worker process has one thread, so no
    other comparison sees the change."""
    originals = grader.sympy_numeric_eq, grader.sympy_solve_and_compare
    grader.sympy_numeric_eq, grader.sympy_solve_and_compare = _same_number, _same_solutions
    try:
        yield
    finally:
        grader.sympy_numeric_eq, grader.sympy_solve_and_compare = originals


def _same_solutions(gold: Any, given: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Compare as the library does, with one exception. The library equates any two equations
    without a solution or a variable: `f(2) = 3` and `f(3) = 3`."""
    if not gold.free_symbols or not solve(gold, gold.free_symbols):
        return False
    return bool(_LIBRARYS_SOLUTIONS(gold, given, float_rounding, numeric_precision))


def _same_number(left: Any, right: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Tell whether two values are equal. Values without a decimal point must be equal exactly. 50 %
    equals both 50 and 1/2."""
    matrices = [isinstance(value, MatrixBase | MatrixExpr) for value in (left, right)]
    if any(matrices):
        left, right = left.doit(), right.doit()
        return (
            isinstance(left, MatrixBase)
            and isinstance(right, MatrixBase)
            and left.shape == right.shape
            and all(
                _same_number(first, second, float_rounding, numeric_precision)
                for first, second in zip(left.flat(), right.flat(), strict=True)
            )
        )
    pairs = [(left, right)]
    before, after = grader.get_pct_val(left), grader.get_pct_val(right)
    if before is not None and after is None:
        pairs.append((before, right))
    if after is not None and before is None:
        pairs.append((left, after))
    return any(_close(first, second, float_rounding, numeric_precision) for first, second in pairs)


def _close(left: Any, right: Any, places: int, precision: int) -> bool:
    rounded = left.has(Float) or right.has(Float)
    left, right = _exact(left), _exact(right)
    difference = (left - right).doit()
    if difference.free_symbols:
        return bool(expand(difference) == 0)
    if difference.is_Rational and not rounded:
        return bool(difference == 0)
    # SymPy raises its precision until enough digits are certain. If 200 digits do not suffice, the
    # value is 0. With a few digits only, it takes ln(1 + 10^-18) for ln(1).
    gap = difference.evalf(100, maxn=200)
    if gap.has(nan, zoo) or not gap.is_number:
        return False
    if gap == 0 or all(part == 0 or part._prec == 1 for part in gap.as_real_imag()):
        return True
    if not rounded:
        return False
    distance = _fraction(abs(difference.evalf(30)))
    largest = max(_fraction(abs(value.evalf(30))) for value in (left, right))
    return close(distance, largest, places) or distance * 10**precision <= largest


def _exact(value: Any) -> Any:
    """Return `value` with its decimals as fractions."""
    return value.xreplace({number: Rational(str(number)) for number in value.atoms(Float)})


def _fraction(value: Any) -> Fraction:
    exact = Rational(value)
    return Fraction(int(exact.p), int(exact.q))


def _ordered(values: list[Any], others: list[Any]) -> list[Any]:
    """Return `values` with repetitions kept: a list becomes a tuple in order if `others` has a list
    of the same length. `1, 1, 2` and `1, 2, 2` would be equal as sets."""
    lengths = {len(value._unsorted_args) for value in others if _repeats(value)}
    return [
        Tuple(*sorted(value._unsorted_args, key=grader.sort_key))
        if _repeats(value) and len(value._unsorted_args) in lengths
        else value
        for value in values
    ]


def _in_order(gold: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the readings, as tuples if one side alone names its variables: `x = 1, y = 2` is (1,
    2), and differs from (2, 1)."""
    # The parser takes (2, 3) for an interval, and the library compares it with tuples.
    if any(isinstance(reading, Tuple | Interval) for reading in gold):
        return gold, [reading for value in given for reading in _assigned(value)[1:]] or given
    named = [assignment for value in gold for assignment in _assigned(value)]
    # `(x, y) = (2, 1)` gives both values, too.
    values = [reading.rhs if isinstance(reading, Eq) else reading for reading in given]
    if not named or not all(isinstance(reading, FiniteSet | Tuple) for reading in values):
        return gold, given
    listed = [getattr(reading, "_unsorted_args", reading.args) for reading in values]
    if any(isinstance(part, Relational) for parts in listed for part in parts):
        return gold, given
    return named, [Tuple(*parts) for parts in listed]


def _assigned(value: Any) -> list[Any]:
    """Return the values in a list of assignments to several variables, as written and in the
    variables' order. Return an empty list for any other value, and for roots: `x_1 = 1, x_2 =
    2`."""
    parts = value._unsorted_args if isinstance(value, FiniteSet) else ()
    if len(parts) < 2 or not all(isinstance(part, Eq) and part.lhs.is_Symbol for part in parts):
        return []
    names = [part.lhs.name for part in parts]
    if len({name[0] for name in names}) < len(names):
        return []
    by_name = sorted(parts, key=lambda part: part.lhs.name)
    return [Tuple(*(part.rhs for part in some)) for some in (parts, by_name)]


def _vectors(values: list[Any], others: list[Any]) -> list[Any]:
    """Return `values`, with a matrix of one row or column as a tuple if `others` has a tuple."""
    if not any(isinstance(other, Tuple | Interval) for other in others):
        return values
    return [
        Tuple(*value.flat()) if isinstance(value, MatrixBase) and 1 in value.shape else value
        for value in values
    ]


def _repeats(value: Any) -> bool:
    return isinstance(value, FiniteSet) and len(value._unsorted_args) > len(value.args)


def _solutions(values: list[Any]) -> list[Any]:
    """Return a list of inequalities (`x < 1 or x > 2`) as one set of allowed values."""
    regions = []
    for value in values:
        parts = value.args if isinstance(value, FiniteSet) else ()
        if parts and all(isinstance(part, Relational) and not part.is_Equality for part in parts):
            try:
                regions.append(Union(*(part.as_set() for part in parts)))
            except Exception:  # SymPy refuses several variables, with several exceptions.
                continue
    return regions


def _same_region(left: Any, right: Any) -> bool:
    """Tell whether two inequalities of one variable allow the same set: `3 >= x >= 1`, `1 <= x <=
    3`."""
    regions = []
    for value in (left, right):
        parts = value.args if isinstance(value, And) else (value,)
        if not all(isinstance(part, Relational) and not part.is_Equality for part in parts):
            return False
        if len(left.free_symbols) != 1 or left.free_symbols != right.free_symbols:
            return False
        try:
            regions.append(Intersection(*(part.as_set() for part in parts)))
        except Exception:  # SymPy cannot solve the inequality.
            return False
    return bool(regions[0] == regions[1] and not regions[0].is_empty)


def _names(values: list[Any]) -> set[str]:
    """Return the variables in expressions."""
    expressions = [expression for expression in values if isinstance(expression, Expr)]
    return {symbol.name for expression in expressions for symbol in expression.free_symbols}


def _complex(values: list[Any]) -> list[Any]:
    """Replace `i` by the imaginary unit in expressions without another variable."""
    expressions = [expression for expression in values if isinstance(expression, Expr)]
    return [
        expression.subs(dict.fromkeys(expression.free_symbols, I)) for expression in expressions
    ]
