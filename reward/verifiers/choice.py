"""The `choice` verifier: does the completion name the right letter of a multiple-choice question?

Reads what marks an answer (`final_answer`), or else the last line. A letter counts only where it
stands as one: "A" in "A cat" is an article. Whoever names several choices has chosen none.
"""

import re
import string
from typing import Any, Literal

from pydantic import Field

from reward.verifiers.answer_value import is_denied, takes_back
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
    FinalAnswer,
    find_answer,
    last_line,
)
from reward.verifiers.math_text import without_styles
from reward.verifiers.plain_number import unwrapped
from reward.verifiers.signs import plain_signs
from services.contracts.scores import ScoreStatus

_NAMES = "option|choice|answer|letter|opción|opcion|opção|вариант|选项|選項|选择|選擇|選択肢|选|選"
_INTRODUCTION = re.compile(
    r"(?:(?:definitely|clearly|simply|likely|probably|most likely|indeed|therefore|thus)\s+)?"
    r"(?:not\s+(?:option\s+|choice\s+)?\(?[A-Z]\)?,?\s+(?:but\s+(?:rather\s+)?|it(?:'s|\s+is)\s+))?"
    r"(?:(?:the|la|el|le|die)\s+|l')?(?:(?:correct|right|best|final)\s+)?"
    rf"(?:(?:{_NAMES})s?(?:\s+is)?\s*:?\s*)?",
    re.IGNORECASE,
)
_LIST = re.compile(
    r"\(?([A-Z])\)?(?:\s*(?:,|/|&|\band\b|\bor\b|[和与或及])\s*)+\(?([A-Z])\)?(?![A-Za-z])"
)
# After a letter: `B is wrong` names a choice that was not chosen.
_RULED_OUT = (
    r"(?!\s*[)\]}]?\s+(?:is|was)"
    r"(?:n't|\s+(?:also\s+)?(?:not|incorrect|wrong|false|impossible|out)\b))"
)
_LETTER = re.compile(
    rf"""[(\[{{]\s*(?P<enclosed>[A-Za-z]){_RULED_OUT}\s*[)\]}}]
      | (?P<bare>[A-Za-z]){_RULED_OUT}(?=\s*$|\s*[).:,;*\]\-\u2013\u2014(]|\s+(?:because|since|is)\b
            |[\u3040-\u9fff\uac00-\ud7a3])
      | (?P<capital>[B-HJ-Z]){_RULED_OUT}(?=\s)""",
    re.VERBOSE,
)
_IN_PROSE = re.compile(
    rf"(?<![A-Za-z])(?i:{_NAMES})\s*(?:(?:[:是为は]|is\b)\s*)?\(?([A-Z])(?![A-Za-z])"
    rf"{_RULED_OUT}|\(([A-Z]){_RULED_OUT}\)"
    r"|\b(?i:choose|pick|select|go with|it's|it is)\s+\(?([A-Z])\b(?!\s+[a-z])"
    r"|\b(?i:so|thus|hence|therefore),?\s+([B-HJ-Z])\.?\s*$"
    r"|\b([A-Z])\s+is\s+(?:the\s+)?(?:correct|right|answer)\b"
)
# An answer is short; longer text is prose, whose beginning decides.
_MAX_CHARS = 200


class ChoiceParams(VerifierParams):
    """The letters, and the places where the answer may stand."""

    choices: int = Field(
        26, ge=2, le=26, description="How many choices there are: A is the first of so many."
    )
    extract: Literal["any", "marked"] = Field(
        "any",
        description="Where the completion's letter may stand. `any`: marked, or else alone on the "
        "last line, or as the last `(B)` or `option B`. `marked`: in \\boxed{}, an <answer> tag, "
        "after #### or after 'the answer is'.",
    )


class ChoiceVerifier(Verifier[ChoiceParams]):
    """See the module. Rewards 1 and 0."""

    name = "choice"
    description = (
        "Correct when the completion names the right letter; the answer is a letter, an index "
        "from 0, or a list of which any will do."
    )
    Params = ChoiceParams

    def check_reference(self, item: Item, params: ChoiceParams) -> None:
        """See Verifier.check_reference."""
        _letters(item.answer, params)

    def score(self, item: Item, params: ChoiceParams) -> Verdict:
        """See Verifier.score."""
        wanted = _letters(item.answer, params)
        said = plain_signs(item.said)
        found = find_answer(said)
        if found is None and params.extract == "any":
            found = _unmarked(said)
        if found is None or not found.text:
            return failed(ScoreStatus.NO_ANSWER, "the completion names no choice")
        letters = read_choices(found.text)
        if not letters and takes_back(found.text):
            return failed(ScoreStatus.WRONG, f"{shown(found.text)} names no choice")
        if not letters:
            return failed(ScoreStatus.UNPARSABLE, f"no letter in {shown(found.text)}")
        compared = f"{', '.join(sorted(letters))} ({found.form}) against {', '.join(wanted)}"
        if len(letters) == 1 and letters <= set(wanted):
            return correct(compared)
        return failed(ScoreStatus.WRONG, compared)


def read_choices(text: str) -> set[str]:
    """The letters that `text`, an answer, names: none, one, or several (then it is undecided)."""
    text = unwrapped(without_styles(plain_signs(text[: 2 * _MAX_CHARS])).replace("$", ""))[
        :_MAX_CHARS
    ]
    introduction = _INTRODUCTION.match(text)
    if introduction:
        text = text[introduction.end() :].strip("*_ ")
    several = _LIST.match(text)
    if several:
        return {several[1], several[2]}
    letter = _LETTER.match(text)
    return {letter[letter.lastgroup or 0].upper()} if letter else set()


def _letters(answer: Any, params: ChoiceParams) -> list[str]:
    """The right letters. Raises BadReferenceError unless each is one of the choices."""
    letters = string.ascii_uppercase[: params.choices]
    read = []
    for one in answer if isinstance(answer, list) else [answer]:
        if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < params.choices:
            read.append(letters[one])
        elif isinstance(one, str) and len(found := read_choices(one)) == 1 and found <= {*letters}:
            read += found
        else:
            raise BadReferenceError(
                f"reference answer {shown(one)} is neither one of the letters {letters[0]} to "
                f"{letters[-1]} nor an index from 0 to {params.choices - 1}"
            )
    if not read:
        raise BadReferenceError("the list of reference answers is empty")
    return read


def _unmarked(completion: str) -> FinalAnswer | None:
    line = last_line(completion)
    if read_choices(line):
        return FinalAnswer(line, "last line")
    named = [
        next(letter for letter in match.groups() if letter)
        for match in _IN_PROSE.finditer(completion)
        if not is_denied(completion, match.start())
    ]
    return FinalAnswer(named[-1], "last named") if named else None
