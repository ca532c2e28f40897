"""Rewrites signs of other keyboards as ASCII: full-width forms, digits of any script, dashes,
quotes, superscripts, vulgar fractions. A run of blanks becomes one blank. Linear time.

Verifiers rewrite completions and references before they search them. So their patterns know one
spelling of each sign, and `\\s*` in a pattern never has a long run to search again and again.
"""

import re
import unicodedata

_BLANKS = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_LINE_ENDS = re.compile(r" ?\n\s*")
_SPACES = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000"
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff"
_FOLDED: dict[int, str] = (
    # The full-width forms of ASCII.
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {ord(sign): " " for sign in _SPACES}
    | {ord(sign): "" for sign in _INVISIBLE}
    | {ord(sign): "-" for sign in "\u2010\u2011\u2012\u2013\u2212\ufe63"}
    | {ord(sign): "'" for sign in "\u2018\u2019\u2032"}
    | {ord(sign): '"' for sign in "\u2033\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f"}
    | {
        ord("\u3002"): ". ",
        ord("\uff61"): ". ",
        ord("\u0964"): ". ",  # the danda of Hindi
        ord("\u3001"): ", ",
        ord("\uff0c"): ", ",
        ord("\u060c"): ", ",
        ord("\uff1b"): "; ",
        ord("\u066a"): "%",
        ord("\u066b"): ".",
        ord("\u066c"): ",",
        ord("\u2236"): ":",
        ord("\u2044"): "/",
        ord("\u2217"): "*",
        ord("\u2026"): "...",
    }
)
_SUPERSCRIPTS = re.compile(
    "[\u2070\u2071\u00b9\u00b2\u00b3\u2074-\u207b\u207f\u02b0-\u02b8\u02e3\u1d43-\u1d61]+"
)
_SUBSCRIPTS = re.compile("[\u2080-\u208b\u2090-\u209c\u1d62-\u1d6a]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_DIGIT = re.compile(r"(?![0-9])\d")
# Enclosed letters and digits, and the letters of mathematical fonts.
_COMPATIBLE = re.compile("[\u2460-\u24ff\U0001d400-\U0001d7ff]")
_GROUPED = re.compile("(?<=\\d)\uff0c(?=\\d{3}(?!\\d))")
_HAN_MINUS = re.compile("[\u8d1f\u8ca0](?=\\s*\\d)")
_HAN_PERCENT = re.compile("\u767e\u5206\u4e4b\\s*(\\d+(?:\\.\\d+)?)")


def plain_signs(text: str) -> str:
    """Return `text` with one spelling of each sign."""
    return _LINE_ENDS.sub("\n", _BLANKS.sub(" ", _ascii_signs(text)))


def _ascii_signs(text: str) -> str:
    if text.isascii():
        return text
    text = _COMPATIBLE.sub(_compatible, text)
    text = _HAN_MINUS.sub("-", text)
    text = _HAN_PERCENT.sub(r"\1%", _GROUPED.sub(",", text))
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{_compatible(match)}}}", text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{_compatible(match)}}}", text)
    text = _VULGAR.sub(_fraction, text.translate(_FOLDED))
    return _DIGIT.sub(lambda match: str(unicodedata.digit(match[0])), text)


def _compatible(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match[0])


def _fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}"
