"""Compares one answer with one reference of the `math` verifier: as text, as plain numbers, or as
expressions.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from reward.verifiers.base import VerifierParams
from reward.verifiers.math.final_answer import MAX_CHARS, FinalAnswer, last_line, too_deep
from reward.verifiers.math.math_reference import Kind, Reference
from reward.verifiers.math.math_text import (
    are_set_and_tuple,
    is_day,
    is_expression,
    is_time_or_date,
    is_words,
    read_ratio,
    same_text,
    same_words,
)
from reward.verifiers.math.plain_number import (
    PlainNumber,
    read_decimal_comma,
    read_number,
    same_number,
)
from reward.verifiers.math.units import read_units, unit_ratio
from reward.verifiers.math.value_in_answer import (
    beginnings,
    endings,
    has_remark,
    is_bound,
    is_compound,
    is_sum,
    other_readings,
)
from services.contracts.scores import ScoreStatus


class MathParams(VerifierParams):
    """The places for the answer, and the rules of equality."""

    extract: Literal["any", "marked", "boxed"] = Field(
        "any",
        description="Where the completion's answer may stand. `any`: marked, or else the last "
        "number or expression. `marked`: in \\boxed{}, an <answer> tag, after #### or after 'the "
        "answer is'. `boxed`: in \\boxed{} alone.",
    )
    worked_out: bool = Field(
        False,
        description="When the reference is a plain number, accept only a plain number: 12+34 is "
        "then no answer to 12+34.",
    )
    strict: bool = Field(
        True,
        description="Names of variables matter, and a set is no tuple. Off: variables are matched "
        "by position, and (1, 2) equals {1, 2}.",
    )
    strictness: Literal["headrace", "math_verify"] = Field(
        "headrace",
        description="`headrace`: as docs/rewards.md says. `math_verify`: the verdicts of the "
        "library math-verify with its defaults, for comparison with other systems; `extract` and "
        "`worked_out` have no meaning there.",
    )
    float_rounding: int = Field(
        6,
        ge=0,
        le=30,
        description="Decimals that must agree if one side has a decimal point. Below 0.1 leading "
        "zeros do not count: so many significant digits must agree.",
    )
    numeric_precision: int = Field(
        15,
        ge=1,
        le=100,
        description="Expressions with a decimal point are equal too if so many significant digits "
        "agree. Those without one are compared exactly.",
    )

    @model_validator(mode="after")
    def _fits_math_verify(self) -> "MathParams":
        if self.strictness == "math_verify" and (self.extract != "any" or self.worked_out):
            raise ValueError(
                "extract and worked_out do not go with strictness: math_verify, which reads the "
                "completion by its own rules; leave them out"
            )
        return self


UNMARKED = "unmarked"
_OR = re.compile(r"\s*,?\s+or\s+")
_SEVERAL = re.compile(r",\s|;|\b(?:and|or)\b")
# `7:45 pm` is right for `7:45`.
_HALF_OF_DAY = re.compile(r"\s*(?:[ap]\.?m\.?|o'clock)$", re.IGNORECASE)
_LAST_LETTER = re.compile(r"(?<=\d)\s?[A-Za-z]$")
_UNIT_LETTER = re.compile(r"(?<=\d)[mgshlLJWVAмгчл]\.?$")


def compare(gold: Reference, answer: FinalAnswer, params: MathParams) -> ScoreStatus:
    """Return CORRECT or WRONG, or UNPARSABLE if the found text cannot be read."""
    whole = answer.text if answer.form != UNMARKED else last_line(answer.text)
    if len(whole) <= MAX_CHARS:
        same = same_words if gold.kind is Kind.WORDS else same_text
        if same(gold.text, whole) or (whole == "12:00" and same_text(gold.text, "noon")):
            return ScoreStatus.CORRECT
        others = other_readings(whole) if answer.form != "\\boxed" or "!" not in whole else []
        for other in others:
            if compare(gold, answer._replace(text=other), params) is ScoreStatus.CORRECT:
                return ScoreStatus.CORRECT
        if is_bound(whole) or (gold.kind is Kind.NUMBER and is_day(whole)):
            return ScoreStatus.WRONG
    for piece in _pieces(answer):
        status = _compare_piece(gold, piece, params)
        if status is not ScoreStatus.UNPARSABLE:
            return status
    # The letters differ from those of the reference, and no parser reads them.
    is_written = re.search(r"\d", whole) or (
        answer.form != UNMARKED
        and re.search(r"[^\W_]", whole)
        and (answer.form != "answer is" or is_expression(whole) or gold.kind is Kind.WORDS)
    )
    if is_written and len(whole) <= MAX_CHARS and not too_deep(whole):
        return ScoreStatus.WRONG
    return ScoreStatus.UNPARSABLE


def _pieces(answer: FinalAnswer) -> Iterator[str]:
    """Return the pieces that may be the answer: the whole text first, then the value in it."""
    if answer.form == UNMARKED:
        yield last_line(answer.text)
        yield from endings(answer.text)
    else:
        several_lines = answer.form == "<answer>" and "\n" in answer.text.strip()
        if not has_remark(answer.text) and not (several_lines and is_expression(answer.text)):
            yield answer.text
        if len(answer.text) <= MAX_CHARS and not is_compound(answer.text):
            yield from beginnings(answer.text)


def _compare_piece(gold: Reference, piece: str, params: MathParams) -> ScoreStatus:
    """Compare `piece` as a whole. Return UNPARSABLE if it has no reading."""
    from reward.verifiers.math.sympy_expressions import read_expressions

    if not piece or len(piece) > MAX_CHARS:
        return ScoreStatus.UNPARSABLE
    if same_text(gold.text, piece) or _equal_by_decimal_comma(gold, piece, params):
        return ScoreStatus.CORRECT
    if is_time_or_date(gold.text) and is_time_or_date(piece):
        return _status(same_text(gold.text, _HALF_OF_DAY.sub("", piece)))
    ratios = read_ratio(gold.text), read_ratio(piece)
    if all(ratios):
        return _status(ratios[0] == ratios[1])
    if any(ratios) and is_expression(piece):
        other = piece if ratios[0] else gold.text
        if not re.search(r"[/:]|frac", other):
            return ScoreStatus.WRONG
    number = read_number(piece) or _said_twice(piece, params)
    if number is None and gold.number is not None and is_sum(piece) and not _SEVERAL.search(piece):
        # `12 + 34 = 46`: the last member of a chain of equalities counts. `5m`: the reference has
        # no letter, so this letter is a unit.
        last = piece.rpartition("=")[2]
        number = read_number(last) or read_number(_UNIT_LETTER.sub("", last))
    wanted = gold.number
    if wanted is None and number is not None and read_units(piece) and read_units(gold.text):
        # The letter of `12V` is a unit, since the answer is `12 volts`.
        wanted = read_number(_LAST_LETTER.sub("", gold.text))
    if wanted is not None and number is not None:
        ratio = unit_ratio(piece, gold.text)
        if ratio is None:
            return ScoreStatus.WRONG
        number = number._replace(value=number.value * ratio)
        return _status(same_number(wanted, number, params.float_rounding))
    if gold.kind is Kind.WORDS and is_words(piece):
        return _status(same_words(gold.text, piece))
    given = read_expressions(piece) if is_expression(piece) else []
    if not given:
        return ScoreStatus.UNPARSABLE
    if gold.kind in (Kind.WORDS, Kind.TEXT):
        return _status(same_text(gold.text, piece))
    if unit_ratio(piece, gold.text) != 1:
        return ScoreStatus.WRONG
    if params.strict and are_set_and_tuple(gold.text, piece):
        return ScoreStatus.WRONG
    if params.worked_out and gold.number is not None and not _is_number(given):
        return ScoreStatus.WRONG
    return _status(same_expression(gold, given, params))


def _said_twice(piece: str, params: MathParams) -> PlainNumber | None:
    """Return the value of `1/2, or 50%`. Return None if the values differ."""
    numbers = [read_number(part) for part in _OR.split(piece)] if len(piece) <= MAX_CHARS else []
    first, *others = numbers or [None]
    same = first and all(
        other and same_number(first, other, params.float_rounding) for other in others
    )
    return first if same and others else None


def same_expression(gold: Reference, given: list[Any], params: MathParams) -> bool:
    from reward.verifiers.math.sympy_expressions import equal, read_expressions

    return equal(
        read_expressions(gold.text),
        given,
        places=params.float_rounding,
        precision=params.numeric_precision,
        strict=params.strict,
    )


def _equal_by_decimal_comma(gold: Reference, text: str, params: MathParams) -> bool:
    """Tell whether a decimal comma on one side and a decimal point on the other make both equal."""
    for comma, point in ((text, gold.text), (gold.text, text)):
        left, right = read_decimal_comma(comma), read_number(point)
        if left and right and same_number(left, right, params.float_rounding):
            return True
    return False


def _is_number(given: list[Any]) -> bool:
    return all(getattr(value, "is_Number", False) for value in given)


def _status(equals: bool) -> ScoreStatus:
    return ScoreStatus.CORRECT if equals else ScoreStatus.WRONG
