"""Numbers as people write them: `72`, `$1,234.50`, `-3 1/2`, `1.5e-3`, `\\frac{3}{4}`, `18 eggs`.

Most answers are such numbers, and comparing them needs no computer algebra: it is exact, takes
microseconds, and cannot hang. Whatever is not *certainly* a plain number reads as None here, and is
left to the library: `2 pi`, `5x`, `10%`, `1,5` (a list, or a decimal comma), `3 or 4`.
"""

import re
from fractions import Fraction
from typing import NamedTuple

# Digits beyond this make conversions slow (they are quadratic), and no answer needs them.
MAX_CHARS = 1000

_NUMBER = re.compile(
    r"""(?P<sign>[-+\u2212]?)\s*[$\u20ac\u00a3\u00a5]?\s*(?P<inner>[-\u2212]?)
    (?:
        \\[dt]?frac\{(?P<top>\d+)\}\{(?P<bottom>\d+)\}
      | (?:(?P<whole>\d+)\s+)?(?P<upper>\d+)\s?/\s?(?P<lower>\d+)
      | (?P<digits>[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+
          |(?=\.\d))
        (?P<point>\.\d*)?
        (?:[eE](?P<exponent>[-+]?\d{1,3})
          | \s*(?:\\times|\\cdot|\u00d7|\*)\s*10\s*(?:\^|\*\*)\s*
            (?:(?P<power>[-+]?\d{1,3})|\{(?P<braced>[-+]?\d{1,3})\}))?
    )
    (?P<unit>(?:\s*\\(?:text|mathrm)\{[^{}]*\}|(?:\s+[A-Za-z]+(?:/[A-Za-z]+)?){1,4})?)
    \s*\.?""",
    re.VERBOSE | re.ASCII,
)
# `0,5` and `1000,99`; not `1,234`, which is more likely to group digits.
_DECIMAL_COMMA = re.compile(r"[-+\u2212]?(?:0|\d+(?!,\d{3}$)),\d+", re.ASCII)
# At the end of a formula; three of them are an ellipsis.
_PUNCTUATION = re.compile(r"(?<![.,;])\s*[.,;]$")
_TEXT = re.compile(r"\\text(?:bf|it|rm)?\{([^{}]*)\}\.?")
_SPACES = re.compile(r"\\[,;:! ]|~")
# Words after a number that change it, or name something that is not a unit.
_NOT_UNITS = frozenset(
    re.findall(
        r"\w+",
        """and or to plus minus times over by of divided mod power factorial root sqrt pi
        x y z n i e k m bn square squared cube cubed half halves third thirds quarter quarters
        dozen dozens hundred hundreds percent pct percentage degree degrees""",
    )
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_GROUPING = re.compile(r"[, \u00a0\u202f]")


class PlainNumber(NamedTuple):
    """An exact value, and whether it was written with a decimal point (then it may be rounded)."""

    value: Fraction
    rounded: bool


def read_number(text: str) -> PlainNumber | None:
    """`text`, all of it, as a number with at most a currency sign and a unit; else None."""
    if len(text) > MAX_CHARS:
        return None
    if "\\" in text or "{" in text or "~" in text:
        text = _SPACES.sub("", text.replace("{,}", ",").replace("\\$", "$"))
    match = _NUMBER.fullmatch(unwrapped(text))
    if match is None:
        return None
    scale = _scale(match["unit"])
    value = _value(match)
    if scale is None or value is None:
        return None
    value *= 10**scale
    # Two signs cancel out nowhere: `-$-5` is nothing that anybody writes.
    if match["sign"] and match["inner"]:
        return None
    if (match["sign"] or match["inner"]) in ("-", "\u2212"):
        value = -value
    return PlainNumber(value, len(match["point"] or "") > 1 or _exponent(match) != 0)


def same_number(left: PlainNumber, right: PlainNumber, places: int) -> bool:
    """Whether two numbers are equal; to half a unit of `places` decimals if one of them has a
    decimal point, exactly otherwise (so 1/3 equals 0.3333333, and 3 does not equal 3.1)."""
    if left.value == right.value:
        return True
    if not (left.rounded or right.rounded):
        return False
    return bool(abs(left.value - right.value) * 2 <= Fraction(1, 10**places))


def read_decimal_comma(text: str) -> PlainNumber | None:
    """`text` as a number with a decimal comma (`1000,99`); None if it is none. Unlike the result of
    `read_number` this is not certain: it may be a list of two numbers."""
    match = _DECIMAL_COMMA.fullmatch(unwrapped(text)) if len(text) <= MAX_CHARS else None
    return read_number(match[0].replace(",", ".")) if match else None


def unwrapped(text: str) -> str:
    """`text` without white space, Markdown emphasis, and the math delimiters and `\\text{}` around
    all of it, up to three layers."""
    for _ in range(3):
        inner = _unwrapped_once(text)
        if inner == text:
            break
        text = inner
    return text


def _unwrapped_once(text: str) -> str:
    text = text.strip().strip("*_`").strip()
    if text.startswith("\\text"):
        whole = _TEXT.fullmatch(text)
        if whole:
            return whole[1].strip()
    for opening, closing in (("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
        if len(text) > len(opening) + len(closing) and text.startswith(opening):
            body = text.removesuffix(".")
            inner = body[len(opening) : -len(closing)]
            if body.endswith(closing) and closing not in inner.replace("\\$", ""):
                return _PUNCTUATION.sub("", inner.strip())
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    top, bottom = match["top"] or match["upper"], match["bottom"] or match["lower"]
    if top is not None:
        if int(bottom) == 0:
            return None
        return int(match["whole"] or 0) + Fraction(int(top), int(bottom))
    places = (match["point"] or "").removeprefix(".")
    digits = _GROUPING.sub("", match["digits"]) + places
    return int(digits) * Fraction(10) ** (_exponent(match) - len(places))


def _exponent(match: re.Match[str]) -> int:
    return int(match["exponent"] or match["power"] or match["braced"] or 0)


def _scale(unit: str) -> int | None:
    """The power of ten that the words after a number stand for; None if they may change it."""
    if not unit:
        return 0
    if "{" in unit:
        unit = unit[unit.index("{") + 1 : -1]
        if not re.fullmatch(r"[A-Za-z .]*", unit):
            return None
    words = [word.strip(".").lower() for word in re.split(r"[\s/]+", unit) if word]
    scale = _SCALES.get(words[0], 0) if words else 0
    rest = words[1:] if scale else words
    return None if any(word in _NOT_UNITS or word in _SCALES for word in rest) else scale
