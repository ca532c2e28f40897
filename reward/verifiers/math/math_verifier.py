"""The `math` verifier: is the completion's final answer equal to the reference?

It finds the answer (`final_answer`), and reads it as a plain number (`plain_number`) or as an
expression (`math_expressions`, the math-verify library). GSM8K and MATH rows work unchanged: only
the final answer of a worked solution counts, in the reference too.
"""

import msgspec

from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    correct,
    failed,
    shown,
)
from reward.verifiers.math.contrasts import plain_contrasts
from reward.verifiers.math.final_answer import (
    CUT_OFF,
    MAX_CHARS,
    FinalAnswer,
    find_answer,
    last_line,
    without_special_tokens,
)
from reward.verifiers.math.math_comparison import UNMARKED, MathParams, compare, same_expression
from reward.verifiers.math.math_reference import Kind, read_reference
from reward.verifiers.math.math_text import single_backslashes
from reward.verifiers.math.plain_number import read_number, unwrapped
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.reference_texts import references
from services.contracts.scores import ScoreStatus

ONLY_WORDS = "are words, which verifier 'math' compares as text (exact is a verifier for text)"


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

    def check_reference(self, item: Item, params: MathParams) -> str | None:
        """Implements `Verifier.check_reference`. It also compares each expression with a number:
        SymPy reads some expressions (`\\sum_{k=1}^{10^7} \\sqrt k`), and never ends computing
        them. The remark is about words."""
        from reward.verifiers.math.sympy_expressions import read_expressions

        if params.strictness == "math_verify":
            _math_verify(msgspec.structs.replace(item, completion="1"), params)
            return None
        golds = [read_reference(text) for text in references(item.answer)]
        for gold in golds:
            if gold.kind is Kind.EXPRESSION:
                same_expression(gold, read_expressions("1"), params)
        return ONLY_WORDS if all(gold.kind is Kind.WORDS for gold in golds) else None

    def score(self, item: Item, params: MathParams) -> Verdict:
        if params.strictness == "math_verify":
            return _math_verify(item, params)
        golds = [read_reference(text) for text in references(item.answer)]
        answer = _find(
            plain_contrasts(plain_signs(without_special_tokens(item.after_thoughts))), params
        )
        if answer is not None and answer.form == UNMARKED and item.truncated:
            return failed(ScoreStatus.NO_ANSWER, CUT_OFF)
        if answer is None or not answer.text:
            return failed(ScoreStatus.NO_ANSWER, _no_answer(params, answer))
        compared = f"{shown(answer.text)} ({answer.form}) against {shown(golds[0].text)}"
        outcomes = {compare(gold, answer, params) for gold in golds}
        if ScoreStatus.CORRECT in outcomes:
            return correct(compared)
        if ScoreStatus.WRONG in outcomes:
            return failed(ScoreStatus.WRONG, compared)
        status = ScoreStatus.NO_ANSWER if answer.form == UNMARKED else ScoreStatus.UNPARSABLE
        return failed(status, f"nothing to read in {shown(answer.text)} ({answer.form})")


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


def _math_verify(item: Item, params: MathParams) -> Verdict:
    """Return the verdict of `strictness: math_verify`. Raises BadReferenceError."""
    from reward.verifiers.math.sympy_expressions import math_verify_equals, math_verify_reads

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


def _no_answer(params: MathParams, answer: FinalAnswer | None) -> str:
    if answer is not None:
        return f"nothing stands in {answer.form}"
    if params.extract == "boxed":
        return "the completion has no \\boxed{}"
    if params.extract == "marked":
        return "the completion marks no answer (\\boxed{}, <answer>, ####, 'the answer is')"
    return "the completion is empty, ends with its thoughts, or is cut off in its box"
