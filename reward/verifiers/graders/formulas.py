"""`calculate_output` of a `multi` grader: arithmetic over the scores of named graders. Pure.

The formula is parsed by Python and walked here, with a list of what is allowed. All numbers are
floats, so no step takes long: the largest formula has MAX_NODES steps.
"""

import ast
import math
import operator
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from headrace.nearest import did_you_mean
from reward.verifiers.base import shown

MAX_FORMULA = 2000
"""Characters."""
MAX_NODES = 500
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
_ANY_NUMBER = ("min", "max")
"""Functions that take two or more numbers. The others take one."""
ALLOWED = f"it may have names of graders, numbers, + - * / ^ ( ) and {', '.join(FUNCTIONS)}"


class FormulaError(ValueError):
    """A formula cannot be used, or has no value for these scores."""


def normal(name: str) -> str:
    """Return a grader's name as Python reads it in a formula."""
    return unicodedata.normalize("NFKC", name)


def check(formula: str, names: Collection[str]) -> None:
    """Raise FormulaError unless a formula can be evaluated with the graders `names`."""
    known = {normal(name) for name in names}
    tree = _parsed(formula)
    for node in _steps(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            hint = did_you_mean(node.id, sorted(known)) or f"; there is {', '.join(sorted(known))}"
            raise FormulaError(f"{node.id!r} is no grader of it{hint}")
    for node in _steps(tree):
        # A part without names has one value, and must have it.
        if _is_constant(node):
            _value(node, {})
        elif isinstance(node, ast.BinOp) and _is_zero(node.right) and type(node.op) is ast.Div:
            raise FormulaError(f"{shown(_quoted(node))} divides by zero")


def value_of(formula: str, scores: Mapping[str, float]) -> float:
    """Return the value of a formula. Raises FormulaError."""
    return _value(_parsed(formula), {normal(name): score for name, score in scores.items()})


@lru_cache(maxsize=128)
def _parsed(formula: str) -> ast.expr:
    """Return the tree of a formula, all of whose nodes are allowed. Raises FormulaError."""
    if len(formula) > MAX_FORMULA:
        raise FormulaError(f"has {len(formula)} characters; {MAX_FORMULA} is the most")
    # As an operator of Python, ^ would bind less than +.
    text = formula.replace("^", "**").strip()
    try:
        tree = ast.parse(text, mode="eval").body
        count = sum(1 for _ in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise FormulaError(f"{shown(formula)} cannot be read ({reason}): {ALLOWED}") from None
    if count > MAX_NODES:
        raise FormulaError(f"has {count} steps; {MAX_NODES} is the most")
    for _step in _steps(tree):
        pass
    return tree


def _steps(node: ast.expr) -> Iterator[ast.expr]:
    """Iterate over the steps of a formula. Raises FormulaError for a step that is not allowed."""
    waiting = [node]
    while waiting:
        step = waiting.pop()
        yield step
        match step:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                waiting += [left, right]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                waiting.append(operand)
            case ast.Constant(value=value) if type(value) in (int, float):
                pass
            case ast.Name():
                pass
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                if (len(args) < 2) if name in _ANY_NUMBER else (len(args) != 1):
                    wanted = "two or more numbers" if name in _ANY_NUMBER else "one number"
                    raise FormulaError(f"{name} takes {wanted}, not {len(args)}")
                waiting += args
            case _:
                raise FormulaError(f"{shown(_quoted(step))} is not allowed: {ALLOWED}")


def _is_constant(node: ast.expr) -> bool:
    return not any(isinstance(step, ast.Name) for step in _steps(node))


def _is_zero(node: ast.expr) -> bool:
    return _is_constant(node) and _value(node, {}) == 0


def _quoted(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:
        return type(node).__name__


def _value(node: ast.expr, scores: Mapping[str, float]) -> float:
    """Return the value of a step. The depth is at most MAX_NODES."""
    try:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                value = _OPERATORS[type(op)](_value(left, scores), _value(right, scores))
            case ast.UnaryOp(op=op, operand=operand):
                value = _OPERATORS[type(op)](_value(operand, scores))
            case ast.Call(func=ast.Name(id=name), args=args):
                value = FUNCTIONS[name](*(_value(argument, scores) for argument in args))
            case ast.Name(id=name):
                value = scores[name]
            case ast.Constant(value=constant):
                value = constant
            case _:
                raise FormulaError(ALLOWED)
        if isinstance(value, complex):
            raise FormulaError(f"{shown(_quoted(node))} is no real number")
        number = float(value)
        if not math.isfinite(number):
            raise OverflowError
        return number
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, FormulaError):
            raise
        there = ", ".join(f"{name} = {score:g}" for name, score in list(scores.items())[:10])
        with_scores = f" with {there}" if there else ""
        raise FormulaError(
            f"{shown(_quoted(node))} has no value{with_scores}: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    return "it is too large" if isinstance(error, OverflowError) else str(error)
