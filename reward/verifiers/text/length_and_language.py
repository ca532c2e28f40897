"""Verifiers of shape: `length`, `repetition`, `language`. Linear time.

Each returns a number to be added to other rewards. A high number does not mean that an answer is
right.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from pydantic import Field, model_validator

from reward.verifiers.base import Item, Verdict, Verifier
from reward.verifiers.text.parts import Part, PartParams, part_of
from services.contracts.scores import ScoreStatus

_WORDS = re.compile(r"\w+|[^\w\s]")
# Scripts without spaces between words: Han and kana, and scripts of South-East Asia and Tibet.
_IDEOGRAPHS = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U000323af"
)
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
# Vowel signs and the like belong to words, but Python does not count them as letters.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x1CFF)) if unicodedata.category(c)[0] == "M")
_RUNS = re.compile(
    rf"(?P<ideographs>[{_IDEOGRAPHS}]+)|(?P<unspaced>[{_UNSPACED}]+)"
    rf"|(?P<word>(?:(?![{_IDEOGRAPHS}{_UNSPACED}])[\w{_MARKS}])+)|\S"
)
_WINDOWS = {"ideographs": 2, "unspaced": 5, "word": 5}
"""The number of characters that count as a word in a run without spaces."""
_LONGEST_WORD = 40
"""Letters. A longer run is text without spaces."""
_REPEATED = re.compile(r"(\w{2,10})\1{3}")
"""Syllables that occur four times in a row: no word has them."""
_CODE_AND_MATH = re.compile(
    r"```.*?(?:```|\Z)|\$[^$]*\$|\\\((?:[^\\]|\\(?![()]))*\\\)|\\\[(?:[^\\]|\\(?![\[\]]))*\\\]",
    re.DOTALL,
)

Unit = Literal["characters", "words"]
# Beginnings of the names that Unicode gives the letters of a script.
_SCRIPTS = {
    "latin": ("LATIN",),
    "cyrillic": ("CYRILLIC",),
    "greek": ("GREEK",),
    "arabic": ("ARABIC",),
    "hebrew": ("HEBREW",),
    "devanagari": ("DEVANAGARI",),
    "thai": ("THAI",),
    "chinese": ("CJK",),
    "japanese": ("CJK", "HIRAGANA", "KATAKANA"),
    "korean": ("HANGUL", "CJK"),
}
Script = Literal[
    "latin",
    "cyrillic",
    "greek",
    "arabic",
    "hebrew",
    "devanagari",
    "thai",
    "chinese",
    "japanese",
    "korean",
]


class LengthParams(PartParams):
    """A range, and the rewards of lengths within and outside it."""

    unit: Unit = Field("characters", description="What is counted; words count punctuation too.")
    minimum: int = Field(0, ge=0, description="The shortest that is within the range.")
    maximum: int | None = Field(None, ge=0, description="The longest; null: any length.")
    within: float = Field(0.0, allow_inf_nan=False, description="The reward within the range.")
    outside: float = Field(-1.0, allow_inf_nan=False, description="The reward outside it.")
    missing: float = Field(
        0.0, allow_inf_nan=False, description="The reward if there is no such part."
    )
    slope: int = Field(
        0,
        ge=0,
        description="Over so many units beyond the range the reward goes from `within` to "
        "`outside` in a straight line; 0: at once.",
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> "LengthParams":
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"maximum {self.maximum} is below minimum {self.minimum}")
        return self


class RepetitionParams(PartParams):
    """The definition of a repetition, and the maximum penalty."""

    part: Part = Field("answer", description=PartParams.model_fields["part"].description)
    unit: Unit = Field(
        "words",
        description="What the n-grams are made of. In text without spaces (Chinese, Japanese, "
        "Thai, …) pieces of 2 to 5 characters stand for words.",
    )
    ngram: int = Field(3, ge=1, le=100, description="Length of the n-grams that are compared.")
    penalty: float = Field(
        0.5,
        ge=0,
        allow_inf_nan=False,
        description="The most that is taken off: when half of the n-grams are repetitions.",
    )


class LanguageParams(PartParams):
    """The script, and its required share."""

    script: Script = Field(description="What to write in. Goes by letters: cannot tell English.")
    minimum: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Reward 1 from this share of letters on, else 0; null: the share itself.",
    )
    skip_code_and_math: bool = Field(
        True, description="Leave out ``` fences and LaTeX formulas: their letters are Latin anyway."
    )


class LengthVerifier(Verifier[LengthParams]):
    """Rewards a length within a range."""

    name = "length"
    description = "A reward for a length within a range, another for one outside."
    Params = LengthParams

    def score(self, item: Item, params: LengthParams) -> Verdict:
        text = part_of(item, params.part)
        if text is None:
            return _scored(params.missing, f"there is no {params.part} part")
        length = len(_units(text, params.unit))
        over = max(params.minimum - length, 0)
        if params.maximum is not None:
            over = max(over, length - params.maximum)
        beyond = min(1.0, over / params.slope) if params.slope else float(over > 0)
        reward = params.within + beyond * (params.outside - params.within)
        return _scored(reward, f"{length} {params.unit}")


class RepetitionVerifier(Verifier[RepetitionParams]):
    """Penalises repetition. Rewards −penalty to 0."""

    name = "repetition"
    description = "Takes off for n-grams that occur again, as minimind does."
    Params = RepetitionParams

    def score(self, item: Item, params: RepetitionParams) -> Verdict:
        text = part_of(item, params.part)
        # A thought that goes on for ever has no answer after it, and repeats itself most.
        text = (item.completion if text is None else text).lower()
        units: Sequence[str] = text if params.unit == "characters" else [*_words(text)]
        n = params.ngram
        grams = len(units) - n + 1
        if grams < 1:
            return _scored(0.0, f"shorter than {n} {params.unit}")
        again = grams - len(set(zip(*(units[start:] for start in range(n)), strict=False)))
        taken = min(params.penalty, 2 * params.penalty * again / grams)
        return _scored(0.0 - taken, f"{again} of {grams} {n}-grams occur again")


class LanguageVerifier(Verifier[LanguageParams]):
    """Rewards the share of letters in a script. Rewards 0 to 1."""

    name = "language"
    description = "The share of letters that belong to a script (latin, chinese, cyrillic, …)."
    Params = LanguageParams

    def score(self, item: Item, params: LanguageParams) -> Verdict:
        text = part_of(item, params.part) or ""
        if params.skip_code_and_math:
            text = _CODE_AND_MATH.sub(" ", text)
        letters = Counter(character for character in text if character.isalpha())
        total = letters.total()
        if not total:
            return Verdict(ScoreStatus.NO_ANSWER, 0.0, "there are no letters")
        names = _SCRIPTS[params.script]
        in_script = sum(
            count for letter, count in letters.items() if _name(letter).startswith(names)
        )
        share = in_script / total
        detail = f"{share:.0%} of {total} letters are {params.script}"
        return _scored(share if params.minimum is None else float(share >= params.minimum), detail)


@lru_cache(maxsize=65536)
def _name(letter: str) -> str:
    return unicodedata.name(letter, "")


def _words(text: str) -> Iterator[str]:
    """Return the words of a text in any script. In text without spaces, overlapping pieces count as
    words: a repeated text gives the same pieces again."""
    for run in _RUNS.finditer(text):
        kind, characters = run.lastgroup or "", run.group()
        size = _WINDOWS.get(kind, 1)
        is_word = len(characters) <= _LONGEST_WORD and not _REPEATED.search(characters)
        if kind == "word" and (is_word or not characters.isalpha()):
            size = len(characters)
        for start in range(max(1, len(characters) - size + 1)):
            yield characters[start : start + size]


def _units(text: str, unit: Unit) -> list[str] | str:
    return text if unit == "characters" else _WORDS.findall(text)


def _scored(reward: float, detail: str) -> Verdict:
    return Verdict(ScoreStatus.SCORED, reward, detail)
