"""The `math` verifier: is the completion's final answer equal to the reference?

It finds the answer (`final_answer`), reads it as a plain number (`plain_number`), and otherwise as
an expression (`math_expressions`, the math-verify library). GSM8K and MATH rows work as they come:
of a worked solution only the final answer counts, in the reference too.
"""

from functools import lru_cache
from typing import Any, Literal, NamedTuple

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
from reward.verifiers.final_answer import (
    MAX_CHARS,
    FinalAnswer,
    find_answer,
    is_expression,
    is_words,
    last_line,
    too_deep,
    without_special_tokens,
)
from reward.verifiers.plain_number import (
    PlainNumber,
    read_decimal_comma,
    read_number,
    same_number,
    unwrapped,
)
from reward.verifiers.text import references
from services.contracts.scores import ScoreStatus
from services.contracts.thoughts import answer_of


class MathParams(VerifierParams):
    """The places where the answer may stand, and the rules of equality."""

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
        6, ge=0, le=30, description="Decimals that must agree if one side has a decimal point."
    )
    numeric_precision: int = Field(
        15, ge=1, le=100, description="Significant digits for comparing expressions numerically."
    )

    @model_validator(mode="after")
    def _fits_math_verify(self) -> "MathParams":
        if self.strictness == "math_verify" and (self.extract != "any" or self.worked_out):
            raise ValueError(
                "extract and worked_out do not go with strictness: math_verify, which reads the "
                "completion by its own rules; leave them out"
            )
        return self


class Reference(NamedTuple):
    """A reference answer that has been read."""

    text: str
    number: PlainNumber | None
    words: bool
    """It is a name or a few words: the answer may be words too."""


class MathVerifier(Verifier[MathParams]):
    """See the module. Rewards 1 and 0."""

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
        """See Verifier.check_reference. Also compares each expression with a number: those that
        SymPy cannot work out (`9^{9^9}`) are read without trouble, and hang only then."""
        from reward.verifiers.math_expressions import equal, read_expressions

        if params.strictness == "math_verify":
            _math_verify(msgspec.structs.replace(item, completion="1"), params)
            return
        for text in references(item.answer):
            gold = read_reference(text)
            if gold.number is None:
                given = read_expressions("1")
                equal(
                    read_expressions(gold.text, gold.words),
                    given,
                    places=params.float_rounding,
                    precision=params.numeric_precision,
                    strict=params.strict,
                )

    def score(self, item: Item, params: MathParams) -> Verdict:
        """See Verifier.score."""
        if params.strictness == "math_verify":
            return _math_verify(item, params)
        golds = [read_reference(text) for text in references(item.answer)]
        found = _find(without_special_tokens(item.said), params)
        if found is None or not found.text:
            return failed(ScoreStatus.NO_ANSWER, _no_answer(params, found))
        compared = f"{shown(found.text)} ({found.form}) against {shown(golds[0].text)}"
        outcomes = {_compare(gold, found, params) for gold in golds}
        if ScoreStatus.CORRECT in outcomes:
            return correct(compared)
        if ScoreStatus.WRONG in outcomes:
            return failed(ScoreStatus.WRONG, compared)
        status = ScoreStatus.NO_ANSWER if found.form == UNMARKED else ScoreStatus.UNPARSABLE
        return failed(status, f"nothing to read in {shown(found.text)} ({found.form})")


UNMARKED = "unmarked"


@lru_cache(maxsize=4096)
def read_reference(text: str) -> Reference:
    """The final answer of a reference: a plain value, or a worked solution that ends in one.

    Raises BadReferenceError, naming the value, if there is nothing to compare with.
    """
    from reward.verifiers.math_expressions import has_environment, read_expressions

    text = answer_of(text) or ""
    found = find_answer(text)
    answer = unwrapped(found.text if found else text)
    number = read_number(answer)
    if number is not None:
        return Reference(answer, number, False)
    words = is_words(answer)
    # Prose has numbers in it too: guessing one would turn a broken dataset row into rewards.
    readable = words or has_environment(answer) or is_expression(answer)
    if not readable or not read_expressions(answer, words):
        raise BadReferenceError(
            f"reference answer {shown(text if found is None else answer)} is no number and no "
            "expression; give the bare value, or a solution that ends in \\boxed{…} or #### …"
        )
    return Reference(answer, None, words)


def _find(completion: str, params: MathParams) -> FinalAnswer | None:
    found = find_answer(completion)
    if params.extract == "boxed":
        return found if found is not None and found.form == "\\boxed" else None
    if found is not None:
        return FinalAnswer(unwrapped(found.text), found.form)
    if params.extract == "marked" or not completion.strip():
        return None
    line = last_line(completion)
    whole = len(line) <= MAX_CHARS and read_number(line) is not None
    return FinalAnswer(line if whole else completion.strip(), UNMARKED)


def _compare(gold: Reference, found: FinalAnswer, params: MathParams) -> ScoreStatus:
    """CORRECT or WRONG; UNPARSABLE if the found text cannot be read."""
    if _equal_by_decimal_comma(gold, found.text, params):
        return ScoreStatus.CORRECT
    number = read_number(found.text)
    if number is None and gold.number is not None:
        # `12 + 34 = 46`, at the end of a line: a chain of equalities stands for its last member.
        number = read_number(last_line(found.text).rpartition("=")[2])
    if gold.number is not None and number is not None:
        return _status(same_number(gold.number, number, params.float_rounding))
    return _compare_expressions(gold, found, params)


def _equal_by_decimal_comma(gold: Reference, text: str, params: MathParams) -> bool:
    """Whether a decimal comma on one side and a decimal point on the other make them equal."""
    for comma, point in ((text, gold.text), (gold.text, text)):
        left, right = read_decimal_comma(comma), read_number(point)
        if left and right and same_number(left, right, params.float_rounding):
            return True
    return False


def _math_verify(item: Item, params: MathParams) -> Verdict:
    """The verdict of `strictness: math_verify`. Raises BadReferenceError."""
    from reward.verifiers.math_expressions import math_verify_equals, math_verify_reads

    found = math_verify_reads(item.completion)
    for text in references(item.answer):
        gold = math_verify_reads(text)
        if not gold:
            raise BadReferenceError(f"math-verify reads nothing in reference answer {shown(text)}")
        if math_verify_equals(
            gold,
            found,
            places=params.float_rounding,
            precision=params.numeric_precision,
            strict=params.strict,
        ):
            return correct(f"math-verify: {shown(found)} equals {shown(gold)}")
    if not found:
        return failed(ScoreStatus.NO_ANSWER, "math-verify reads no answer in the completion")
    return failed(ScoreStatus.WRONG, f"math-verify: {shown(found)} against {shown(item.answer)}")


def _compare_expressions(gold: Reference, found: FinalAnswer, params: MathParams) -> ScoreStatus:
    from reward.verifiers.math_expressions import equal, read_expressions

    text = found.text
    if found.form == UNMARKED:
        line = last_line(text)
        text = line if len(line) <= MAX_CHARS and is_expression(line) else text[-MAX_CHARS:]
    if too_deep(text):
        return ScoreStatus.UNPARSABLE
    given = read_expressions(text, gold.words)
    if not given and text != found.text:
        given = read_expressions(found.text[-MAX_CHARS:], gold.words)
    if not given:
        return ScoreStatus.UNPARSABLE
    if params.worked_out and gold.number is not None and not _is_number(given):
        return ScoreStatus.WRONG
    return _status(
        equal(
            read_expressions(gold.text, gold.words),
            given,
            places=params.float_rounding,
            precision=params.numeric_precision,
            strict=params.strict,
        )
    )


def _is_number(given: list[Any]) -> bool:
    return all(getattr(value, "is_Number", False) for value in given)


def _status(equals: bool) -> ScoreStatus:
    return ScoreStatus.CORRECT if equals else ScoreStatus.WRONG


def _no_answer(params: MathParams, found: FinalAnswer | None) -> str:
    if found is not None:
        return f"nothing stands in {found.form}"
    if params.extract == "boxed":
        return "the completion has no \\boxed{}"
    if params.extract == "marked":
        return "the completion marks no answer (\\boxed{}, <answer>, ####, 'the answer is')"
    return "the completion is empty, or ends with its thoughts"
