"""Evaluates the arithmetic of nanochat's calculator by walking a parsed expression.

Never `eval`: the policy wrote the text. An expression has at most MAX_CHARACTERS and no powers, so
it takes microseconds.
"""

import ast
import math
import operator
from collections.abc import Callable

MAX_CHARACTERS = 256

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class NoResult(ValueError):
    """The text is an unsupported expression, or its value is infinite or undefined."""


def calculate(text: str) -> str | None:
    """Return the value of `text` as Python writes it, or None if it cannot be computed (nanochat's
    `use_calculator`).

    Supports numbers with + - * / // and parentheses, and the method `'text'.count('t')`. Commas are
    removed first, as in 1,000.
    """
    text = text.replace(",", "").strip()
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        return str(_value(ast.parse(text, mode="eval").body))
    except (NoResult, SyntaxError, ArithmeticError, RecursionError, MemoryError, ValueError):
        return None


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _finite(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _finite(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str() as whole), attr="count"),
            args=[ast.Constant(value=str() as part)],
            keywords=[],
        ):
            return whole.count(part)
    raise NoResult


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise NoResult
    return number
