"""Reads numbers as people write them: `72`, `$1,234.50`, `-3 1/2`, `1.5e-3`, `\\frac{3}{4}`,
`37.5%`, `0.\\overline{3}`, `18 eggs`, `9.8 m/s^2`.

Most answers are such numbers. Comparing them needs no computer algebra: it is exact, takes
microseconds, and cannot hang. Text that is not *certainly* a plain number reads as None here, and
goes to the library: `2 pi`, `5x`, `1,5` (a list, or a decimal comma), `3 or 4`.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from reward.verifiers.math.number_words import SCALES
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.math.units import ATTACHED_NAMES, with_powers

# More digits make conversions slow (quadratic time), and no answer needs more.
MAX_CHARS = 1000

CURRENCY = "$\u20ac\u00a3\u00a5\u20b9\u20bd\u20a9\u20bf"
_MONEY = rf"(?:(?:US|CA|AU|HK)?[{CURRENCY}]|(?:Rs\.?|INR|USD|EUR|GBP|CNY|RMB|JPY)(?![A-Za-z]))"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+]?)\s*{_MONEY}?\s*(?P<inner>-?)\s*(?:
        (?:(?P<mixed>\d+)\s*)?\\(?:[dtcs]|nice)?frac\s*(?:\{{\s*(?P<top>\d+)\s*\}}|(?P<top1>\d))\s*
        (?:\{{\s*(?P<bottom>\d+)\s*\}}|(?P<bottom1>\d))
      | (?:(?P<whole>\d+)(?:\s+|\s+and\s+))?(?P<upper>\d+)\s?/\s?(?P<lower>\d+)
      | (?P<digits>[1-9]\d{{0,2}}(?:,\d{{3}})+(?!\d)|[1-9]\d?(?:,\d\d)+,\d{{3}}(?!\d)
          |\d{{1,3}}(?:\ \d{{3}})+(?!\d)|[1-9]\d{{0,2}}(?:'\d{{3}})+(?!\d)|\d+|(?=\.[\d\\(]))
        (?P<point>\.\d*(?P<repetend>\\(?:overline|bar|dot)\s*(?:\d|\{{\d+\}})(?:\d*\\dot\s*\{{?\d\}}?)?
          |\(\d+\)|\s?(?:\.\.\.|\\[lc]?dots\b))?)?
        (?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\d)
          | \s*(?:\\times|\\cdot|\u00d7|\u00b7|\*|x)\s*10\s*(?:\^|\*\*)\s*
            (?:(?P<power>[-+]?\d{{1,3}})|[{{(](?P<braced>[-+]?\d{{1,3}})[}})]))?
    )(?!\d)""",
    re.VERBOSE | re.ASCII,
)
_PERCENT = re.compile(
    r"\s*(?:\\?%|(?:\\text\{)?\s*\\?(?:%|per\s?cent\b|pct\b|percentage(?: points?)?\b)\s*\}?)"
)
_DEGREE = re.compile(
    r"\s*(?:\^\s*(?:\{\s*)?\\(?:circ|degree)\s*\}?|\^?\\degree|\u00b0)\s*[CFK]?(?![A-Za-z])"
)
_LETTERS = r"[^\s\d!-/:-@\[-`{-~]+"
_POWER = r"(?:\^\{?-?\d\}?)?"
_SIGN_UNIT = (
    "[\u00b0\u00ba\u00aa\u2103\u2109\u00c5\u212b\u00a2\u0e3f\u20a0-\u20bf]"
    "|[kMGm]?[\u03a9\u2126]|[\u00b5\u03bc](?:[msgFLAVHJNW]|mol)"
    # These decorate an answer.
    "|[\u2605\u2606\u263a\u2705\u2713\u2714\u2728\u2b50\ufe0f\U0001f300-\U0001faff]+"
)
# A single letter of an alphabet is a symbol. Scripts from Devanagari on write words with one sign.
_FOREIGN = (
    rf"(?:{_SIGN_UNIT})(?![A-Za-z])"
    rf"|(?:[\u0400-\u08ff]{{2}}|[^\W\d_\x00-\u08ff\u1d00-\u2fff])(?:{_LETTERS})?"
)
# Letters of a unit that stand at the number itself, as in `5cm`, and are not a product of
# variables.
_ATTACHED = rf"""(?:
    (?:\^\s?\{{?\s?(?:\\(?:text|mathrm)\s?\{{)?)?(?:st|nd|rd|th)\b\}}{{0,2}}|(?:[km]?ph|k?cal|k?Wh?|[KMGT]B|units?|[\u00b5\u03bc]m|{ATTACHED_NAMES})\b{_POWER}
    (?:/[a-z]{{1,3}}\b{_POWER})?|m/s{_POWER}|[gm]{_POWER}/[a-z]+{_POWER}|m\^\{{?[23]\}}?|{_FOREIGN})"""
_QUOTIENT = (
    r"\\[dt]?frac\s*\{\s*(?:[kcm]?m|mi|ft|[mk]?g|[kM]?[JNW]|mol)\s*\}"
    rf"\s*\{{\s*(?:s|h|hr|min|m?L|[kcm]?m|k?g|mol|K){_POWER}\s*\}}"
)
_GREEK = r"(?:[kMGm]?\s*\\Omega|\\mu\s*(?:[msgFLAVHJNW]|mol))(?![A-Za-z])"
_IN_TEXT = (
    r"\\(?:text|mathrm|mbox|textrm|textit|textbf|rm)\s*\{(?:[^{}]|\^\{-?\d\})*\}(?:\^\{?\\circ\}?)?"
    + _POWER
)
UNIT = re.compile(
    rf"""(?:\s*(?:{_IN_TEXT}\s*)?{_GREEK}
      | \s*(?:\\mu\s*)?{_IN_TEXT}(?:\s*(?:/|\\cdot|\\times|\u00b7)?\s*{_IN_TEXT})*
      | \s*\\[dt]?frac\s*\{{{_IN_TEXT}\}}\s*\{{{_IN_TEXT}\}} | \s*{_QUOTIENT}
      | \s?(?:\\?\$|[{CURRENCY[1:]}])
      | {_ATTACHED}
      | )(?:\s+{_LETTERS}{_POWER}(?:[/\u00b7*.-]{_LETTERS}{_POWER})*){{0,5}}""",
    re.VERBOSE,
)
SIGN_UNIT = re.compile(_SIGN_UNIT)
_MODIFIER = re.compile("[\u02b0-\u02ff\u1d2c-\u1d6a\u2070-\u2bff]")
_GREEK_LETTER = re.compile("[\u0370-\u03ff]")
_END = re.compile(r"\s*\.?\s*")
# `0,5` and `1000,99`; not `1,234`, which is more likely to group digits.
# `1.234,5` and `1.234.567` group digits by dots.
_DECIMAL_COMMA = re.compile(
    r"[-+]?(?:\d{1,3}(?:([ .'])\d{3})(?:\1\d{3})*,(?!\d{3}(?!\d))\d+"
    r"|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|(?:0|\d+(?!,\d{3}(?!\d))),\d+)(?![\d.,])",
    re.ASCII,
)
_GROUPS = re.compile(r"(?<=\d)[ .'](?=\d{3})")
# At the end of a formula; three of them are an ellipsis.
PUNCTUATION = re.compile(r"(?<![.,;])\s*[.,;]$")
_TEXT = re.compile(r"\\(?:text|mbox)(?:bf|it|rm)?\{([^{}]*)\}\.?")
# A thin space stands before a unit: `300\\,K`. `300K` may be 300,000.
_THIN_UNIT = re.compile(r"(?<=[\d}])\s*\\[,; ]\s*([KN])(?=\$?$)")
_QUOTIENT_SIGN = re.compile(r"(?<=[A-Za-z]) / (?=[A-Za-z])")
_NO_SPACE = re.compile(r"\\!\s*")
_SPACE = re.compile(r"(?:(?:\\[,;: ]|~)\s*)+")
_MEASURE = re.compile(r"(?:[kMGm]\s*\}?\s*)?\\Omega|\\[A-Za-z]+\s*|[{}^\d-]+")
# Words after a number that change it, or that are not a unit.
NOT_UNITS = frozenset(
    re.findall(
        r"\w+",
        """and or to plus minus times over by of divided mod power factorial root sqrt pi
        x y z n i e k bn square squared cube cubed half halves third thirds quarter quarters
        percent pct percentage but not nor am pm пи
        january february march april june july august september october november december""",
    )
)
# Letters of variables are in no unit here.
_UNIT_LETTERS = frozenset("mgshLlNJWVACFK$")
# Scales of scripts without spaces, except in 千克 (kg) and 千米 (km).
_JOINED_SCALE = re.compile("[百백만억천万萬亿億兆조]|千(?![克米瓦卡焦赫帕伏升])|พัน|หมื่น|แสน|ล้าน")
_GROUPING = re.compile(r"[, ']")
_BLOCK = re.compile(r"(\d{1,6}?)\1\1+$")


class PlainNumber(NamedTuple):
    """An exact value, and how it was written."""

    value: Fraction
    rounded: bool
    """Whether the number has a decimal point: it may be rounded."""
    percent: bool = False
    """Whether the number has a percent sign. `value` is the number before the sign."""


class Leading(NamedTuple):
    """A number at the beginning of a text."""

    number: PlainNumber
    rest: str
    """The text after the number, without its percent sign or degrees."""


def read_number(text: str) -> PlainNumber | None:
    """Read the whole `text` as a number with at most a currency sign and a unit. Return None for
    other text."""
    if len(text) > MAX_CHARS:
        return None
    leading = read_leading(unwrapped(_tidy(text)))
    if leading is None:
        return None
    unit = UNIT.match(leading.rest)
    assert unit is not None
    scale = _scale(unit[0])
    if scale is None or not _END.fullmatch(leading.rest, unit.end()):
        return None
    return leading.number._replace(value=leading.number.value * scale)


def read_leading(text: str) -> Leading | None:
    """Read the number at the beginning of `text`. Return None without one."""
    match = _NUMBER.match(text[: MAX_CHARS + 1])
    if match is None or match.end() > MAX_CHARS:
        return None
    value = _value(match)
    # Two signs do not cancel out: `-$-5` is an error.
    if value is None or (match["sign"] and match["inner"]):
        return None
    if "-" in (match["sign"], match["inner"]):
        value = -value
    end = match.end()
    percent = _PERCENT.match(text, end)
    degree = None if percent else _DEGREE.match(text, end)
    rounded = not match["repetend"] and (len(match["point"] or "") > 1 or _exponent(match) != 0)
    number = PlainNumber(value, rounded, percent is not None)
    after = percent or degree
    return Leading(number, text[after.end() if after else end :])


def same_number(left: PlainNumber, right: PlainNumber, places: int) -> bool:
    """Tell whether two numbers are equal: exactly, or `close` if one of them has a decimal point
    (so 1/3 equals 0.3333333, and 3 does not equal 3.1). 50 % equals both 50 and 1/2."""
    pairs = [(left.value, right.value)]
    if left.percent and not right.percent:
        pairs.append((left.value / 100, right.value))
    if right.percent and not left.percent:
        pairs.append((left.value, right.value / 100))
    rounded = left.rounded or right.rounded
    return any(
        first == second
        or (rounded and close(abs(first - second), max(abs(first), abs(second)), places))
        for first, second in pairs
    )


def close(difference: Fraction, largest: Fraction, places: int) -> bool:
    """Tell whether two values that are `difference` apart agree to `places` decimals. If the larger
    value is below 0.1, significant digits count instead: only 0 equals 0."""
    if difference == 0:
        return True
    zeros = len(str(int(1 / largest))) - 1 if largest < 1 else 0
    return difference * 2 * 10 ** (places + zeros) <= 1


def read_decimal_comma(text: str) -> PlainNumber | None:
    """Read `text` as a number with a decimal comma (`1000,99`, `2,5 kg`). Return None for other
    text. In contrast to `read_number`, this is uncertain: the text may be a list of two numbers."""
    if len(text) > MAX_CHARS:
        return None
    text = unwrapped(_tidy(text))
    match = _DECIMAL_COMMA.match(text)
    if match is None:
        return None
    return read_number(_GROUPS.sub("", match[0]).replace(",", ".") + text[match.end() :])


def unwrapped(text: str) -> str:
    """Strip white space, quotes, Markdown emphasis, and up to three layers of math delimiters and
    `\\text{}` around `text`."""
    for _ in range(3):
        inner = _unwrapped_once(text)
        if inner == text:
            break
        text = inner
    return text


def _tidy(text: str) -> str:
    text = _QUOTIENT_SIGN.sub("/", with_powers(plain_signs(text)))
    if "\\" in text or "{" in text or "~" in text:
        text = _THIN_UNIT.sub(r"\\text{\1}", text)
        text = _NO_SPACE.sub("", text.replace("{,}", ",").replace("\\$", "$"))
        text = _SPACE.sub(" ", text)
    return text


def _unwrapped_once(text: str) -> str:
    text = text.strip().strip("*`").strip()
    for around in "\"'_":
        if len(text) > 2 and text[0] == text[-1] == around:
            text = text.strip(around).strip()
    if text.startswith(("\\text", "\\mbox")):
        whole = _TEXT.fullmatch(text)
        if whole:
            return whole[1].strip()
    for opening, closing in (("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
        if len(text) > len(opening) + len(closing) and text.startswith(opening):
            body = text.removesuffix(".")
            inner = body[len(opening) : -len(closing)]
            if body.endswith(closing) and closing not in inner.replace("\\$", ""):
                return PUNCTUATION.sub("", inner.strip())
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    top = match["top"] or match["top1"] or match["upper"]
    if top is not None:
        bottom = int(match["bottom"] or match["bottom1"] or match["lower"])
        whole = int(match["mixed"] or match["whole"] or 0)
        return whole + Fraction(int(top), bottom) if bottom else None
    places = (match["point"] or ".")[1:].removesuffix(match["repetend"] or "")
    digits = _GROUPING.sub("", match["digits"]) + places
    value = Fraction(int(digits or "0"))
    if match["repetend"]:
        block = "".join(re.findall(r"\d", match["repetend"]))
        if not block:
            block_match = _BLOCK.search(places)
            if block_match is None:
                return None
            block = block_match[1]
        value += Fraction(int(block), 10 ** len(block) - 1)
    return value * Fraction(10) ** (_exponent(match) - len(places))


def _exponent(match: re.Match[str]) -> int:
    return int(match["exponent"] or match["power"] or match["braced"] or 0)


def _scale(unit: str) -> int | None:
    """Return the factor of the words after a number. Return None if they may change it."""
    if not unit:
        return 1
    words = [word.strip(".") for word in re.split(r"[\s/]+", _MEASURE.sub(" ", unit)) if word]
    letters = _UNIT_LETTERS | {"T"} if "\\" in unit else _UNIT_LETTERS
    if any(len(word) == 1 and word.isascii() and word not in letters for word in words):
        return None
    if not all(word.isascii() or _is_foreign_unit(word, "/" in unit) for word in words):
        return None
    # N and K are units in `\\text{}`, and otherwise numbers like n and k.
    words = [word if len(word) == 1 and "\\" in unit else _lowered(word) for word in words]
    scale = 1
    while words and words[0] in SCALES:
        scale *= SCALES[words.pop(0)]
    if words and (joined := _JOINED_SCALE.match(words[0])):
        scale *= SCALES[joined[0]]
    return None if any(word in NOT_UNITS or word in SCALES for word in words) else scale


def _lowered(word: str) -> str:
    return unicodedata.normalize("NFC", word.lower())


def _is_foreign_unit(word: str, in_quotient: bool) -> bool:
    """Tell whether `word`, which is not ASCII, can be a unit: a word of any script, and no symbol.

    A Greek word has an accent: without one, its letters are factors."""
    if SIGN_UNIT.fullmatch(word):
        return True
    parts = [part for part in re.split(r"[\u00b7.*]", word) if not part.isascii()]
    return all(
        all(unicodedata.category(letter)[0] in "LM" for letter in part)
        and not _MODIFIER.search(part)
        and (len(part) > 1 or part >= "\u0900" or part in "мгчл" + "с" * in_quotient)
        and (not _GREEK_LETTER.search(part) or "\u0301" in unicodedata.normalize("NFD", part))
        for part in parts
    )
