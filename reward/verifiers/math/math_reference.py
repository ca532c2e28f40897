"""Reads references of the `math` verifier: numbers, words, expressions, or text that no parser
reads.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from reward.verifiers.base import BadReferenceError, shown
from reward.verifiers.math.contrasts import plain_joints
from reward.verifiers.math.final_answer import find_answer
from reward.verifiers.math.math_text import (
    SIZES,
    is_expression,
    is_label,
    is_words,
    single_backslashes,
)
from reward.verifiers.math.plain_number import PlainNumber, read_number, unwrapped
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.math.units import read_units
from reward.verifiers.math.value_in_answer import COMMAND, beginnings, is_bound, is_compound
from services.contracts.thoughts import answer_of

# These are answers to "which sign?".
_SIGN = re.compile(r"[-+=<>/*\u00d7\u00f7\u00b1\u2260\u2264\u2265]|[<>]=")

_EMPTY = re.compile(r"\(\s*\)|\[\s*\]|\\\{\s*\\\}")

# `v = 5 m/s`.
_NAMED_MEASURE = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?\s*=\s*(.+)")
_DIGIT = re.compile(r"[-+(]?\s*\d")


class Kind(StrEnum):
    """How a reference is compared."""

    NUMBER = "number"
    WORDS = "words"
    """A name or a few words."""
    EXPRESSION = "expression"
    TEXT = "text"
    """Text that no parser reads as a whole. Its letters are compared."""


class Reference(NamedTuple):
    """A reference answer, with its reading."""

    text: str
    kind: Kind
    number: PlainNumber | None = None


@lru_cache(maxsize=4096)
def read_reference(text: str) -> Reference:
    """Return the final answer of a reference: a plain value, or a worked solution that ends in one.
    Raises BadReferenceError, naming the value, if there is nothing to compare with."""
    from reward.verifiers.math.sympy_expressions import read_expressions

    text = plain_joints(plain_signs(answer_of(text) or ""))
    final = find_answer(text)
    answer = unwrapped(single_backslashes(final.text if final else text))
    number = read_number(answer)
    if number is not None:
        return Reference(answer, Kind.NUMBER, number)
    measured = _NAMED_MEASURE.fullmatch(answer)
    if measured and read_units(measured[1]) and (number := read_number(measured[1])):
        return Reference(measured[1], Kind.NUMBER, number)
    if is_words(answer):
        return Reference(answer, Kind.WORDS)
    # Prose has numbers too: a guess would turn a broken dataset row into rewards.
    if is_expression(answer):
        if read_expressions(answer):
            return Reference(answer, Kind.EXPRESSION)
        if re.search(r"[^\W_]", answer):
            return Reference(answer, Kind.TEXT)
    without_commands = COMMAND.sub(" ", answer)
    if (
        is_label(answer)
        or is_bound(answer)
        or is_compound(answer)
        or _SIGN.fullmatch(answer)
        or _EMPTY.fullmatch(SIZES.sub("", answer).strip())
        or (without_commands != answer and is_words(without_commands))
    ):
        return Reference(answer, Kind.TEXT)
    for piece in beginnings(answer) if final or _DIGIT.match(answer) else ():
        number = read_number(piece)
        if number is not None:
            return Reference(answer, Kind.NUMBER, number)
    raise BadReferenceError(
        f"reference answer {shown(text if final is None else answer)} is no number and no "
        "expression; give the bare value, or a solution that ends in \\boxed{…} or #### …"
    )
