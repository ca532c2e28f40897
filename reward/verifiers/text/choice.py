"""The `choice` verifier: does the completion name the right letter of a multiple-choice question?

It reads the marked answer (`final_answer`); without a mark, it reads the last line. A letter counts
only if it is not a word: "A" in "A cat" is an article. An answer with several choices chooses
nothing.
"""

import re
import string
from typing import Any, Literal

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
from reward.verifiers.math.contrasts import FOREIGN_NOT, plain_contrasts
from reward.verifiers.math.final_answer import (
    CUT_OFF,
    FinalAnswer,
    find_answer,
    last_line,
)
from reward.verifiers.math.math_text import without_styles
from reward.verifiers.math.plain_number import unwrapped
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.math.value_in_answer import takes_back
from services.contracts.scores import ScoreStatus

_NAMES = (
    "option|choice|answer|letter|opción|opcion|opção|alternativa|вариант|ответ|respuesta|réponse"
    "|antwort|resposta|risposta|odpowiedź|cevap|jawaban|đáp án|chọn|उत्तर|选项|選項|选择|選擇"
    "|選択肢|选|選|答案|只有|正しいのは"
)
_INTRODUCTION = re.compile(
    r"(?:(?:but|is|rather|so|thus|hence|therefore|it(?:'s|\s+is|\s+must\s+be)|must\s+be|es|а|definitely"
    r"|clearly|simply|likely|probably|most likely|indeed),?\s+)*"
    r"(?:(?:the|la|el|le|die)\s+|l')?(?:(?:correct|right|best|final)\s+)?"
    rf"(?:(?:{_NAMES})s?(?:\s+is)?\s*:?\s*)?",
    re.IGNORECASE,
)
_LIST = re.compile(
    r"\(?([A-Z])\)?(?:\s*(?:,|/|&|\band\b|\bor\b|[和与或及])\s*)+\(?([A-Z])\)?(?![A-Za-z])"
)
_BLANKS = re.compile(r"[ \t]+")
_BRACES = re.compile(r"[{}$`\"]|''")
# "I" is a pronoun.
_CHOICE = r"(?:(?i:option|choice|answer) )?\(?(?!I )[A-Z]\)?(?![A-Za-z'])"
_CHOICES = (
    rf"{_CHOICE}(?:(?: ?[,/和与或及] ?|,? (?:and|or|nor) )(?:(?:and|or|nor) )?{_CHOICE}){{0,8}}+"
)
_WRONG = r"(?:incorrect|wrong|false|impossible|invalid|out|ruled out|eliminated|excluded)"
_REFUSALS = (
    r"n't|\b(?:not|never|cannot|neither|eliminat\w+|rul(?:e|es|ed|ing) out|exclud\w+|discard\w*"
    r"|reject\w*|except|anything but|all but|over|rather than|instead of|better than|unlikely to"
    r"|(?:wrong|incorrect|false|unlikely|least likely) (?:answer|option|choice)s?(?: is| are)?:?)"
    rf"|排除|(?:{FOREIGN_NOT})(?: é)?"
)
_FOREIGN_WRONG = (
    r"(?:, )?(?:错|錯|误|不正确|不对|不符|不成立|排除|(?:で)?はない"
    r"|ではありません|[はが](?:誤|間違|不正)|[가는이은] ?(?:아니|아닙|틀)|오답)"
    r"|(?:\u2014|является|es|est|ist|é|è|is)? ?"
    r"(?:неверн|неправильн|ошибочн|не подходит|incorrect[aoe]?\b|fals[ao]\b|fau(?:x|sse)\b|falsch\b"
    r"|nicht (?:richtig|korrekt)|errad[ao]\b|sbagliat[ao]\b)"
)
# Choices that a text names and does not choose: `not B`, `eliminate A and D`, `B is wrong`. Each
# blank here is a single blank, which keeps the search linear.
_REFUSED = re.compile(
    rf"(?i:,? ?\b(?:and|but) )?(?i:(?:{_REFUSALS})"
    rf"(?: (?:be|is|choose|pick|select|the|both|either|options?|choices?)){{0,4}}) ?{_CHOICES}"
    r"|\b(?i:if|suppose|assume|whether|unless)(?i: that)?(?i: (?:the|our))?(?i: [a-z]{2,12}){0,2}"
    rf"(?i: (?:is|was|were))? {_CHOICES}"
    rf"|{_CHOICES}(?i: (?:also )?(?:cannot|fails|contradicts|[a-z]{{2,6}}n't)\b"
    r"| (?:is|was|are|were|can|could|must|should|would|does|do|seems?) (?:be |also ){0,2}"
    rf"(?:not|{_WRONG})\b| ?[:?\u2013-]{{1,3}} ?(?:no|{_WRONG})\b"
    rf"|(?:选项|項|项)? ?(?:[\u2717\u2718\u274c\u00d7]|{_FOREIGN_WRONG}))"
    rf"|{_CHOICES}"
    r"(?i: (?:seems?|looks?|appears?|sounds?|might|may|could|is tempting)\b[^.;\n]{0,40}?"
    r"(?=,? (?:but|yet|however)\b))"
)
_LETTER = re.compile(
    r"""[(\[{]\s*(?P<enclosed>[A-Za-z])\s*[)\]}]
      | (?P<bare>[A-Za-z])(?=\s*$|\s*[).:,;*\]\-\u2013\u2014(]|\s+(?:because|since|is)\b
            |[\u3010-\u9fff\uac00-\ud7a3])
      | (?P<capital>[B-HJ-Z])(?=\s)""",
    re.VERBOSE,
)
_IN_PROSE = re.compile(
    rf"(?<![A-Za-z])(?i:{_NAMES})(?:\s+(?:correcta|correta|corretta|correcte|yang benar))?\s*"
    r"(?:(?:[:是为は\u2014-]|(?:is|es|est|é|è|ist|adalah|là)\b)\s*)?\(?([A-Z])(?![A-Za-z])"
    r"|\(([A-Z])\)"
    r"|\b(?i:choose|pick|select|prefer|go with|it's|it is|must be"
    r"|leaves(?: us)?(?: with)?|left with|only|but)\s+"
    r"\(?([A-Z])(?![A-Za-z])(?!\s+(?!remains\b|is (?:true|correct|right)\b)[a-z])"
    r"|\b(?i:so|thus|hence|therefore|is|be|say|final|answer)(?:[,:]| -)?\s+([B-HJ-Z])\.?\s*$"
    r"|而是\s*\(?([A-Z])(?![A-Za-z])"
    r"|([A-Z])(?: ?[\u2713\u2714\u2705\u221a]"
    r"|\)?(?:项|選項|选项|[がは가는이])? ?(?:정답|正解|正しい|正确|正確|符合))"
    r"|\b([A-Z])\s+is\s+(?:(?:the|a)\s+)?(?:correct|right|answer|better|best|more\s)"
    r"|\b([B-HJ-Z])\s+is[.!]?\s*$"
)
# Characters. An answer is short; longer text is prose, whose beginning decides.
_MAX_CHARS = 200
_ALONE = re.compile(r"[\s*(\[]{0,9}([A-Z])[*)\].]{0,9}[ \t]{0,9}\n")
_MAX_PROSE = 20_000


class ChoiceParams(VerifierParams):
    """The letters, and the places for the answer."""

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
    """Compares letters. Rewards 1 and 0."""

    name = "choice"
    description = (
        "Correct when the completion names the right letter; the answer is a letter, an index "
        "from 0, or a list of which any will do."
    )
    Params = ChoiceParams

    def check_reference(self, item: Item, params: ChoiceParams) -> None:
        _letters(item.answer, params)

    def score(self, item: Item, params: ChoiceParams) -> Verdict:
        wanted = _letters(item.answer, params)
        text = plain_contrasts(plain_signs(item.after_thoughts))
        answer = find_answer(text)
        if answer is None and item.truncated:
            return failed(ScoreStatus.NO_ANSWER, CUT_OFF)
        if answer is None and params.extract == "any":
            answer = _unmarked(text)
        if answer is None or not answer.text:
            return failed(ScoreStatus.NO_ANSWER, "the completion names no choice")
        letters = read_choices(answer.text)
        if not letters and answer.form == "answer is":
            # "The answer is not A. It is B."
            rest = text if takes_back(answer.text) else text.rpartition(answer.text)[2]
            if other := _unmarked(rest):
                letters, answer = read_choices(other.text), other
        if not letters and takes_back(answer.text):
            return failed(ScoreStatus.WRONG, f"{shown(answer.text)} names no choice")
        if not letters:
            return failed(ScoreStatus.UNPARSABLE, f"no letter in {shown(answer.text)}")
        compared = f"{', '.join(sorted(letters))} ({answer.form}) against {', '.join(wanted)}"
        if len(letters) == 1 and letters <= set(wanted):
            return correct(compared)
        return failed(ScoreStatus.WRONG, compared)


def read_choices(text: str) -> set[str]:
    """Return the letters that `text`, an answer, names. With several letters the answer is
    undecided."""
    text = without_styles(plain_signs(text[: 2 * _MAX_CHARS]))
    text = _BLANKS.sub(" ", unwrapped(_BRACES.sub("", text))[:_MAX_CHARS])
    chosen = _REFUSED.sub(" ", text)
    letters = _leading(chosen.lstrip(" ,;.:"))
    return letters if letters or chosen == text else {*_named(chosen)[-1:]}


def _leading(text: str) -> set[str]:
    """Return the letters at the beginning of `text`."""
    introduction = _INTRODUCTION.match(text)
    if introduction:
        text = text[introduction.end() :].strip("*_ ")
    several = _LIST.match(text)
    if several:
        return {several[1], several[2]}
    letter = _LETTER.match(text)
    return {letter[letter.lastgroup or 0].upper()} if letter else set()


def _letters(answer: Any, params: ChoiceParams) -> list[str]:
    """Return the right letters. Raises BadReferenceError unless each letter is one of the
    choices."""
    letters = string.ascii_uppercase[: params.choices]
    read = []
    for letter in answer if isinstance(answer, list) else [answer]:
        if (
            isinstance(letter, int)
            and not isinstance(letter, bool)
            and 0 <= letter < params.choices
        ):
            read.append(letters[letter])
        elif (
            isinstance(letter, str)
            and len(named := read_choices(letter)) == 1
            and named <= {*letters}
        ):
            read += named
        else:
            raise BadReferenceError(
                f"reference answer {shown(letter)} is neither one of the letters {letters[0]} to "
                f"{letters[-1]} nor an index from 0 to {params.choices - 1}"
            )
    if not read:
        raise BadReferenceError("the list of reference answers is empty")
    return read


def _unmarked(completion: str) -> FinalAnswer | None:
    line = last_line(completion)
    if read_choices(line):
        return FinalAnswer(line, "last line")
    if alone := _ALONE.match(completion):
        # An explanation may follow.
        return FinalAnswer(alone[1], "first line")
    named = _named(_REFUSED.sub(" ", _BLANKS.sub(" ", completion[-_MAX_PROSE:])))
    return FinalAnswer(named[-1], "last named") if named else None


def _named(text: str) -> list[str]:
    """Return the letters that sentences of `text` name."""
    return [next(filter(None, match.groups())) for match in _IN_PROSE.finditer(text)]
