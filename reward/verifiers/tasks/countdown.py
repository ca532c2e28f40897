"""The `countdown` verifier: does an equation use the given numbers and reach the target?

The rule is TinyZero's, which made the task popular: each number is used exactly once, with + - * /
and parentheses. The arithmetic uses fractions, so rounding decides nothing.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    correct,
    failed,
    shown,
)
from reward.verifiers.math.final_answer import find_answer, last_line
from reward.verifiers.math.math_text import without_styles
from reward.verifiers.math.plain_number import unwrapped
from reward.verifiers.math.signs import plain_signs
from services.contracts.scores import ScoreStatus

MAX_CHARACTERS = 1000
_SIGNS = str.maketrans("\u00d7\u00b7\u22c5\u00f7:[]{}", "***//()()")
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/", "$": "", r"\(": "", r"\)": ""}
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BEGINNING = re.compile(r"[-(\d]")
# A remark may follow, but not the sign of another operation.
_EXPRESSION = re.compile(r"[\d+\-*/() ]+(?=$|[,;.]?\s+(?![\d+*/^-])|[,;.]$)")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Puzzle(NamedTuple):
    """A row: the numbers to use, and the target."""

    nums: list[int]
    target: int


class CountdownVerifier(Verifier[VerifierParams]):
    """Computes the equation. Rewards 1 and 0."""

    name = "countdown"
    description = (
        "Correct when the equation (in <answer> tags, a box or the last line) uses each number of "
        "the row's nums once and equals its target."
    )
    Params = VerifierParams

    def check_reference(self, item: Item, params: VerifierParams) -> None:
        _puzzle(item)

    def score(self, item: Item, params: VerifierParams) -> Verdict:
        puzzle = _puzzle(item)
        text = _equation(plain_signs(item.after_thoughts), puzzle.nums)
        if not text:
            return failed(ScoreStatus.NO_ANSWER, "the completion holds no equation")
        try:
            value, used = computed(text)
        except ZeroDivisionError:
            return failed(ScoreStatus.WRONG, f"{shown(text)} divides by 0")
        except ValueError as error:
            return failed(ScoreStatus.UNPARSABLE, f"{shown(text)}: {error}")
        if Counter(used) != Counter(puzzle.nums):
            return failed(
                ScoreStatus.WRONG, f"{shown(text)} uses {sorted(used)}, not {sorted(puzzle.nums)}"
            )
        if value != puzzle.target:
            return failed(ScoreStatus.WRONG, f"{shown(text)} is {value}, not {puzzle.target}")
        return correct(f"{shown(text)} is {puzzle.target}")


def computed(text: str) -> tuple[Fraction, list[int]]:
    """Return the value of an expression, and the numbers in it. Raises ValueError for anything but
    whole numbers, + - * / and parentheses, and ZeroDivisionError."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS} characters")
    # Python's parser gets no other character.
    if not re.fullmatch(r"[\d+\-*/() ]+", text):
        raise ValueError("an equation has whole numbers, + - * / and parentheses alone")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is no equation") from error
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(number)):
                used.append(number)
                return Fraction(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
                return _OPERATIONS[type(sign)](value(left), value(right))
        raise ValueError("an equation has whole numbers, + - * / and parentheses alone")

    return value(tree.body), used


def _equation(text: str, nums: list[int]) -> str:
    """Return the expression that is the answer: the side of an equation that has the numbers."""
    answer = find_answer(text)
    equation = unwrapped(without_styles(unwrapped(answer.text if answer else last_line(text))))
    for mark, sign in _LATEX.items():
        equation = equation.replace(mark, sign)
    for _ in range(4):
        equation = _FRACTION.sub(r"((\1)/(\2))", equation)
    # Words may introduce the equation: "the equation is 1 + 2".
    equation = equation.translate(_SIGNS)
    start = _BEGINNING.search(equation)
    equation = equation[start.start() :] if start else equation
    sides = [_without_remark(side) for side in equation.split("=", 2)[:2]]
    digits = Counter(map(str, nums))
    return next((side for side in sides if Counter(re.findall(r"\d+", side)) == digits), sides[0])


def _without_remark(text: str) -> str:
    text = text.strip()
    expression = _EXPRESSION.match(text)
    return " ".join((expression[0] if expression else text).split())


def _puzzle(item: Item) -> Puzzle:
    """Read a row. Raises BadReferenceError."""
    given = item.answer if isinstance(item.answer, dict) else item.columns
    nums, target = given.get("nums"), given.get("target")
    if not isinstance(nums, list) or not nums or not all(type(number) is int for number in nums):
        raise BadReferenceError(
            f"nums of the row is {shown(nums)}, no list of whole numbers: upload the file with the "
            "mapping countdown"
        )
    if type(target) is not int:
        raise BadReferenceError(f"target of the row is {shown(target)}, no whole number")
    return Puzzle(nums, target)
