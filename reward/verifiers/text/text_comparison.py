"""Verifiers that compare text: `exact`, `contains`, `regex`. They understand no mathematics.

`exact` and `contains` read the answer after the thoughts. `regex` searches the whole completion,
thoughts included; a cut-off thought has no answer. A regular expression may take exponential time
to match, and seconds to compile. The pool's deadlines bound that (`reward.workers.pool`), so the
check of parameters does neither.
"""

import re
from typing import Any

from pydantic import Field

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
from reward.verifiers.reference_texts import references
from services.contracts.scores import ScoreStatus
from services.contracts.thoughts import answer_of


class TextParams(VerifierParams):
    """How completion and reference are prepared before they are compared."""

    ignore_case: bool = Field(False, description="Compare without regard to upper and lower case.")
    strip: bool = Field(True, description="Take white space off both ends first.")


class RegexParams(VerifierParams):
    """The pattern, and how it is matched."""

    pattern: str | None = Field(
        None,
        max_length=10_000,
        description="Python regular expression; without one, the answer is the pattern.",
    )
    ignore_case: bool = Field(False, description="Match without regard to upper and lower case.")
    whole: bool = Field(
        False, description="The whole completion must match, not just a part of it."
    )


class ExactVerifier(Verifier[TextParams]):
    """Compares completion and reference, character by character."""

    name = "exact"
    description = "Correct when the completion equals the answer (one text, or any of a list)."
    Params = TextParams

    def check_reference(self, item: Item, params: TextParams) -> None:
        if not all(_prepared(text, params) for text in references(item.answer)):
            raise BadReferenceError("an empty reference answer equals every empty completion")

    def score(self, item: Item, params: TextParams) -> Verdict:
        self.check_reference(item, params)
        completion = _prepared(item.after_thoughts, params)
        wanted = [_prepared(text, params) for text in references(item.answer)]
        if completion in wanted:
            return correct()
        status = ScoreStatus.WRONG if completion else ScoreStatus.NO_ANSWER
        return failed(status, f"{shown(completion)} is not {shown(wanted[0])}")


class ContainsVerifier(Verifier[TextParams]):
    """Searches the completion for the reference."""

    name = "contains"
    description = "Correct when the answer (one text, or any of a list) occurs in the completion."
    Params = TextParams

    def check_reference(self, item: Item, params: TextParams) -> None:
        if not all(_prepared(text, params) for text in references(item.answer)):
            raise BadReferenceError("an empty reference answer occurs in every completion")

    def score(self, item: Item, params: TextParams) -> Verdict:
        self.check_reference(item, params)
        completion = _prepared(item.after_thoughts, params)
        if not completion:
            return failed(ScoreStatus.NO_ANSWER, "the completion is empty")
        for wanted in references(item.answer):
            if _prepared(wanted, params) in completion:
                return correct(f"contains {shown(wanted)}")
        return failed(ScoreStatus.WRONG, f"does not contain {shown(item.answer)}")


class RegexVerifier(Verifier[RegexParams]):
    """Searches the completion for a pattern."""

    name = "regex"
    description = "Correct when a regular expression (parameter, or the answer) is found."
    Params = RegexParams
    reference = "pattern"

    def check_reference(self, item: Item, params: RegexParams) -> None:
        _pattern(item.answer, params)

    def score(self, item: Item, params: RegexParams) -> Verdict:
        pattern = _pattern(item.answer, params)
        text = item.prefill + item.completion
        if answer_of(text) is None:
            return failed(ScoreStatus.NO_ANSWER, "a pattern is not looked for in an open thought")
        match = (pattern.fullmatch if params.whole else pattern.search)(text)
        if match:
            return correct(f"matched {shown(match.group())}")
        return failed(ScoreStatus.WRONG, f"{shown(pattern.pattern)} does not match")


def _prepared(text: str, params: TextParams) -> str:
    text = text.strip() if params.strip else text
    return text.casefold() if params.ignore_case else text


def _pattern(answer: Any, params: RegexParams) -> re.Pattern[str]:
    source = params.pattern
    if source is None:
        if not isinstance(answer, str):
            raise BadReferenceError(
                f"answer {shown(answer)} is no pattern, and params has no 'pattern' either"
            )
        source = answer
    try:
        return re.compile(source, re.IGNORECASE if params.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadReferenceError(f"{shown(source)} is no regular expression: {error}") from None
