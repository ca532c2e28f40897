"""The `math` verifier: is the completion's final answer equal to the reference?

It finds the answer (`final_answer`), and reads it as a plain number (`plain_number`) or as an
expression (`math_expressions`, the math-verify library). GSM8K and MATH rows work unchanged: only
the final answer of a worked solution counts, in the reference too.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from pydantic import Field, model_validator

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
from reward.verifiers.math.answer_value import (
    beginnings,
    endings,
    has_remark,
    is_bound,
    is_compound,
    is_sum,
    other_readings,
)
from reward.verifiers.math.contrasts import plain_contrasts
from reward.verifiers.math.final_answer import (
    CUT_OFF,
    MAX_CHARS,
    FinalAnswer,
    find_answer,
    last_line,
    too_deep,
    without_special_tokens,
)
from reward.verifiers.math.math_reference import Kind, Reference, read_reference
from reward.verifiers.math.math_text import (
    are_set_and_tuple,
    is_expression,
    is_time_or_date,
    is_words,
    read_ratio,
    same_text,
    same_words,
    single_backslashes,
)
from reward.verifiers.math.plain_number import (
    PlainNumber,
    read_decimal_comma,
    read_number,
    same_number,
    unwrapped,
)
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.references import references
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


class MathVerifier(Verifier[MathParams]):
    """Compares final answers. Rewards 1 and 0."""

    name = "math"
    description = (
        "Correct when the final answer (\\boxed{}, ####, 'the answer is', or the last number or "
        "expression) equals the reference, by value."
    )
    Params = MathParams

    def warm(self) -> None:
        """Import SymPy and run each kind of parser once: they build large tables at first use."""
        params = MathParams()
        for answer, completion in (
            ("\\frac{1}{2}", "The answer is 1/2 + x."),
            ("x^2 + 2x + 1", "so $(x+1)^2$"),
            ("\\{1, 2\\}", "\\boxed{[1, 2)}"),
            ("\\begin{pmatrix}1&2\\end{pmatrix}", "$2\\sqrt{3}\\pi$ or 5"),
        ):
            self.score(Item(self.name, "", completion, answer, {}), params)

    def check_reference(self, item: Item, params: MathParams) -> None:
        """Implements `Verifier.check_reference`. It also compares each expression with a number:
        some expressions (`9^{9^9}`) can be read, and only hang when SymPy computes them."""
        from reward.verifiers.math.math_expressions import read_expressions

        if params.strictness == "math_verify":
            _math_verify(msgspec.structs.replace(item, completion="1"), params)
            return
        for text in references(item.answer):
            gold = read_reference(text)
            if gold.kind is Kind.EXPRESSION:
                _same_expression(gold, read_expressions("1"), params)

    def score(self, item: Item, params: MathParams) -> Verdict:
        if params.strictness == "math_verify":
            return _math_verify(item, params)
        golds = [read_reference(text) for text in references(item.answer)]
        answer = _find(plain_contrasts(plain_signs(without_special_tokens(item.said))), params)
        if answer is not None and answer.form == UNMARKED and item.truncated:
            return failed(ScoreStatus.NO_ANSWER, CUT_OFF)
        if answer is None or not answer.text:
            return failed(ScoreStatus.NO_ANSWER, _no_answer(params, answer))
        compared = f"{shown(answer.text)} ({answer.form}) against {shown(golds[0].text)}"
        outcomes = {_compare(gold, answer, params) for gold in golds}
        if ScoreStatus.CORRECT in outcomes:
            return correct(compared)
        if ScoreStatus.WRONG in outcomes:
            return failed(ScoreStatus.WRONG, compared)
        status = ScoreStatus.NO_ANSWER if answer.form == UNMARKED else ScoreStatus.UNPARSABLE
        return failed(status, f"nothing to read in {shown(answer.text)} ({answer.form})")


UNMARKED = "unmarked"
_OR = re.compile(r"\s*,?\s+or\s+")
_SEVERAL = re.compile(r",\s|;|\b(?:and|or)\b")
_UNIT_LETTER = re.compile(r"(?<=\d)[mgshlLJWVA]\.?$")


def _find(completion: str, params: MathParams) -> FinalAnswer | None:
    answer = find_answer(completion)
    if params.extract == "boxed":
        return answer if answer is not None and answer.form == "\\boxed" else None
    if answer is not None:
        return FinalAnswer(unwrapped(single_backslashes(answer.text)), answer.form)
    # In an incomplete box the text was cut off before its answer.
    cut_off = "\\boxed" in completion or "\\fbox" in completion
    if params.extract == "marked" or cut_off or not completion.strip():
        return None
    line = last_line(completion)
    whole = len(line) <= MAX_CHARS and read_number(line) is not None
    return FinalAnswer(line if whole else completion.strip(), UNMARKED)


def _compare(gold: Reference, answer: FinalAnswer, params: MathParams) -> ScoreStatus:
    """Return CORRECT or WRONG, or UNPARSABLE if the found text cannot be read."""
    whole = answer.text if answer.form != UNMARKED else last_line(answer.text)
    if len(whole) <= MAX_CHARS:
        same = same_words if gold.kind is Kind.WORDS else same_text
        if same(gold.text, whole) or (whole == "12:00" and same_text(gold.text, "noon")):
            return ScoreStatus.CORRECT
        others = other_readings(whole) if answer.form != "\\boxed" or "!" not in whole else []
        for other in others:
            if _compare(gold, answer._replace(text=other), params) is ScoreStatus.CORRECT:
                return ScoreStatus.CORRECT
        if is_bound(whole):
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


def _math_verify(item: Item, params: MathParams) -> Verdict:
    """Return the verdict of `strictness: math_verify`. Raises BadReferenceError."""
    from reward.verifiers.math.math_expressions import math_verify_equals, math_verify_reads

    readings = math_verify_reads(item.completion)
    for text in references(item.answer):
        gold = math_verify_reads(text)
        if not gold:
            raise BadReferenceError(f"math-verify reads nothing in reference answer {shown(text)}")
        if math_verify_equals(
            gold,
            readings,
            places=params.float_rounding,
            precision=params.numeric_precision,
            strict=params.strict,
        ):
            return correct(f"math-verify: {shown(readings)} equals {shown(gold)}")
    if not readings:
        return failed(ScoreStatus.NO_ANSWER, "math-verify reads no answer in the completion")
    return failed(ScoreStatus.WRONG, f"math-verify: {shown(readings)} against {shown(item.answer)}")


def _compare_piece(gold: Reference, piece: str, params: MathParams) -> ScoreStatus:
    """Compare `piece` as a whole. Return UNPARSABLE if it has no reading."""
    from reward.verifiers.math.math_expressions import read_expressions

    if not piece or len(piece) > MAX_CHARS:
        return ScoreStatus.UNPARSABLE
    if same_text(gold.text, piece) or _equal_by_decimal_comma(gold, piece, params):
        return ScoreStatus.CORRECT
    if is_time_or_date(gold.text) and is_time_or_date(piece):
        return ScoreStatus.WRONG
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
    if gold.number is not None and number is not None:
        return _status(same_number(gold.number, number, params.float_rounding))
    if gold.kind is Kind.WORDS and is_words(piece):
        return _status(same_words(gold.text, piece))
    given = read_expressions(piece) if is_expression(piece) else []
    if not given:
        return ScoreStatus.UNPARSABLE
    if gold.kind in (Kind.WORDS, Kind.TEXT):
        return _status(same_text(gold.text, piece))
    if params.strict and are_set_and_tuple(gold.text, piece):
        return ScoreStatus.WRONG
    if params.worked_out and gold.number is not None and not _is_number(given):
        return ScoreStatus.WRONG
    return _status(_same_expression(gold, given, params))


def _said_twice(piece: str, params: MathParams) -> PlainNumber | None:
    """Return the value of `1/2, or 50%`. Return None if the values differ."""
    numbers = [read_number(part) for part in _OR.split(piece)] if len(piece) <= MAX_CHARS else []
    first, *others = numbers or [None]
    same = first and all(
        other and same_number(first, other, params.float_rounding) for other in others
    )
    return first if same and others else None


def _same_expression(gold: Reference, given: list[Any], params: MathParams) -> bool:
    from reward.verifiers.math.math_expressions import equal, read_expressions

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


def _no_answer(params: MathParams, answer: FinalAnswer | None) -> str:
    if answer is not None:
        return f"nothing stands in {answer.form}"
    if params.extract == "boxed":
        return "the completion has no \\boxed{}"
    if params.extract == "marked":
        return "the completion marks no answer (\\boxed{}, <answer>, ####, 'the answer is')"
    return "the completion is empty, ends with its thoughts, or is cut off in its box"
