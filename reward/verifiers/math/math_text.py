"""Compares mathematical text by its letters: words, and formulas that no parser reads as a whole.

The comparison ignores spelling (spaces, braces, styles, `\\dfrac`, `\\left`), but never a value.
Linear time.
"""

import re
import unicodedata
from fractions import Fraction

from reward.verifiers.math.number_words import words_as_digits
from reward.verifiers.math.plain_number import PUNCTUATION, unwrapped
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.math.value_in_answer import COMMAND, FUNCTIONS, MOST, PROSE, is_compound

_LONGEST_WORDS = 200
_MOST_WORDS = 8
STYLES = (
    r"\\(?:text|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|mbox|textbf|textit|textrm|textsf|texttt|textsc"
    r"|textnormal|boxed|fbox|operatorname\*?|boldsymbol|bm|emph|underline|bold|mathcal|mathscr|mathfrak|mathbb)"
)
_STYLED = re.compile(STYLES + r"\s*\{([^{}]*)\}")
_TWICE = re.compile(r"\{\{([^{}]*)\}\}")
_STYLED_LETTER = re.compile(STYLES + r"\s+([A-Za-z0-9])")
COLOR = re.compile(
    r"\\textcolor\s*(?:\[\w*\])?\s*\{[^{}]*\}|\\(?:color|colorbox)\s*(?:\[\w*\])?\s*\{[^{}]*\}"
)
SIZES = re.compile(
    r"\\(?:[!,;:>]|(?:left|right|middle|mleft|mright|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|rm|bf"
    r"|it|tiny|small|large|Large|LARGE|huge|Huge|quad|qquad|enspace|thinspace|medspace"
    r"|thickspace)(?![A-Za-z]))\s?\.?(?![\d])"
)
_SPELLINGS = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\leq": r"\le", r"\geq": r"\ge",
    r"\leqslant": r"\le", r"\geqslant": r"\ge", r"\neq": r"\ne", r"\cdot": "*", r"\times": "*",
    r"\ast": "*", r"\ldots": "...", r"\cdots": "...", r"\dots": "...", r"\dotsc": "...",
    r"\dotsb": "...", r"\varnothing": r"\emptyset", r"\lbrace": r"\{", r"\rbrace": r"\}",
    r"\lbrack": "[", r"\rbrack": "]", r"\colon": ":", r"\bmod": r"\mod", r"\pmod": r"\mod",
    r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|", r"\tbinom": r"\binom",
    r"\dbinom": r"\binom", r"\to": r"\rightarrow", r"\bar": r"\overline", r"\degree": r"^\circ",
    r"\land": r"\wedge", r"\lor": r"\vee", r"\iff": r"\Leftrightarrow", r"\infin": r"\infty",
    r"\And": "&", r"\div": "/", r"\lt": "<", r"\gt": ">", r"\dotsm": "...",
    r"\nicefrac": r"\frac", r"\sfrac": r"\frac",
}  # fmt: skip
# The product of two vectors, which is not their scalar product.
CROSS = re.compile(
    r"(\\(?:(?:vec|overrightarrow|mathbf|boldsymbol|bm|hat)(?:\s*\{\s*\\?[A-Za-z]+\s*\}|\s+[A-Za-z])|nabla))\s*"
    r"\\times(?![A-Za-z])"
)
_SET = re.compile(r"\\\{[^()\[\]]*,[^()\[\]]*\\\}")
_TUPLE = re.compile(r"\([^()\[\]]*,[^()\[\]]*\)")
_BASE = re.compile(r"(?<=\d)_\{?([a-z]+)\}?$")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z])")
_SPACE = re.compile(r"(?<!\\)\\ |~")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_MODULUS = re.compile(r"\(\s*\\?mod\s*([^()]*)\)|\\(?:bmod|pmod|mod)\s*(?:\{([^{}]*)\})?")
# A blank between two numbers stays: `3 1/2` is not `31/2`. The digits of a large number may be in
# groups.
_BLANKS = re.compile(r"(?<!\d)\s+|\s++(?!\d)|\s+(?=\d{3}(?!\d))|\{\}")
_SINGLE = re.compile(r"\{(\w|\\[A-Za-z]+)\}")
_NAME_SIGNS = frozenset(" '-.,&/()")
_MONTHS = re.compile(
    r"\b(jan(?=uary\b|\b)|feb(?=ruary\b|\b)|mar(?=ch\b|\b)|apr(?=il\b|\b)|may\b|june?\b|july?\b"
    r"|aug(?=ust\b|\b)|sep(?=tember\b|t?\b)|oct(?=ober\b|\b)|nov(?=ember\b|\b)|dec(?=ember\b|\b))[a-z]*\.?",
    re.IGNORECASE,
)
_YEAR = r"(?:,? \d{4})?"
_DAY = re.compile(
    rf"\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTHS.pattern}{_YEAR}"
    rf"|{_MONTHS.pattern}\s+\d{{1,2}}(?:st|nd|rd|th)?{_YEAR}",
    re.IGNORECASE,
)
_DATE = re.compile(r"\w+")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_LABEL_WORD = re.compile(r"[A-Z][\w.']*|\d[\w:.]*|of|the|at|[ap]\.?m\.?|o'clock|and|")
_BETWEEN_WORDS = re.compile(r"[\s,&/()-]")
_TIME_OR_DATE = re.compile(
    r"(?:[01]?\d|2[0-4])(?:(?::[0-5]\d){1,2}\s*(?:[ap]\.?m\.?|midnight|o'clock)?|\s*[ap]\.?m\.?)"
    r"|\d{4}([/.-])\d{1,2}\1\d{1,2}|\d{1,2}([/.-])\d{1,2}\2\d{4}",
    re.IGNORECASE,
)
_RATIO = re.compile(r"\d{1,30}(?:\.\d{1,30})?(?:\s*:\s*\d{1,30}(?:\.\d{1,30})?)+")
_NOON = re.compile(r"noon|12(?::00)?\s*(?:noon|p\.?m\.?)", re.IGNORECASE)
_ALL_NUMBERS = re.compile(
    r"(?:(?:all|any|every|the set of(?: all)?) )?real numbers?", re.IGNORECASE
)
_ALL_REALS = (r"(-\infty,\infty)", r"(-\infty,+\infty)")
_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are) )?no (?:(?:real|integer|such|valid) )?(?:solutions?|roots?)(?: exists?)?"
    r"|(?:the )?(?:empty|null) set|\\\{\s*\\\}",
    re.IGNORECASE,
)
_FULL_HOUR = re.compile(r":00(?=\s*[ap])", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"(?<![\d.:])0(?=\d)")
_PERIOD = re.compile(r"(?<!\d)\.|\.(?!\d)")
_OPENING = re.compile(
    r"(?:(?:it|that|this|he|she|they|there|on|in|at)\s+)?(?:(?:is|was|are|were|will be)\s+)?"
    r"(?:(?:the|an?|on|in)\s+)?"
)
# "Is", at the end of a sentence in Japanese or Korean.
_POLITE = re.compile(r"(?:\u3067\u3059|\u3067\u3057\u305f|\u3067\u3042\u308b|\uc785\ub2c8\ub2e4)$")
_REMARK = re.compile(
    r"\s*(?:[;:(]|\.\s|\s[-\u2014]+\s|,\s+(?:(?!and\b|or\b)[^\W\d_A-Z])|(?:is|was|because|since|as|with|who|which|"
    r"for|at|by)\b)"
)


def single_backslashes(text: str) -> str:
    """Return `text` with `\\frac` for a `\\\\frac` that was escaped twice. Rows of a matrix stay
    apart."""
    return text if "\\begin" in text else _DOUBLED.sub(r"\\", text)


def same_text(left: str, right: str) -> bool:
    """Tell whether two texts differ in spelling at most."""
    return plain_text(left) == plain_text(right)


def plain_text(text: str) -> str:
    """Return one spelling of `text`: equal results mean the same formula, or the same words."""
    text = PUNCTUATION.sub("", unwrapped(plain_signs(text))).replace("$", "")
    if is_compound(text):
        text = text.replace(" and ", " ").replace(",", "")
    if "\\" in text:
        text = CROSS.sub(r"\1\\crossed ", text)
        text = text.replace("{,}", ",").replace("\\%", "%")
        text = without_styles(_DELIMITERS.sub("", text))
    text = _MODULUS.sub(lambda match: " mod " + (match[1] or match[2] or ""), text)
    text = _COMMANDS.sub(lambda match: _SPELLINGS.get(match[0], match[0]), text)
    for _ in range(3):
        text = _SINGLE.sub(r"\1", text)
    text = _BASE.sub(lambda match: f"_{words_as_digits(match[1])}", text)
    if _NO_SOLUTION.fullmatch(text):
        return r"\emptyset"
    if _ALL_NUMBERS.fullmatch(text):
        return "R"
    if _NOON.fullmatch(text):
        text = "12:00 pm"
    if _TIME_OR_DATE.fullmatch(text):
        text = _FULL_HOUR.sub("", _LEADING_ZERO.sub("", text))
    if is_words(text) or is_label(text):
        text = _ORDINAL.sub("", unicodedata.normalize("NFC", text).casefold())
        if _MONTHS.search(text) and any(sign.isdigit() for sign in text):
            text = " ".join(sorted(_DATE.findall(_MONTHS.sub(r"\1", text))))
        text = _PERIOD.sub("", text).replace(",", "")
    text = _BLANKS.sub("", text.replace("**", "^"))
    return "R" if text in _ALL_REALS else text


def without_styles(text: str) -> str:
    """Return `text` without fonts, colours and spaces of LaTeX: `\\textbf{(B)}\\ 12` is `(B)
    12`."""
    if "\\" not in text:
        return text
    text = SIZES.sub(" ", COLOR.sub("", _SPACE.sub(" ", text)))
    for _ in range(2):
        text = _STYLED.sub(r"\1", _TWICE.sub(r"{\1}", text))
    return SIZES.sub(" ", _STYLED_LETTER.sub(r"\1", text))


def are_set_and_tuple(left: str, right: str) -> bool:
    """Tell whether one text is a set in braces and the other a tuple in parentheses."""
    left, right = (SIZES.sub("", text).strip() for text in (left, right))
    return any(
        _SET.fullmatch(first) and _TUPLE.fullmatch(second)
        for first, second in ((left, right), (right, left))
    )


def same_words(wanted: str, given: str) -> bool:
    """Tell whether `given` has the words `wanted`, and at most a remark after them: `Yes, because
    …` means Yes, and `Paris or Rome` does not mean Paris."""
    if same_text(wanted, given):
        return True
    wanted, given = _without_opening(wanted), _without_opening(given)
    if not wanted or not given.casefold().startswith(wanted.casefold()):
        return same_text(wanted, given)
    rest = given[len(wanted) :]
    return not rest.strip(" .!") or _REMARK.match(rest) is not None


def is_words(text: str) -> bool:
    """Tell whether `text` is a name or a few words (`Monday`, `New York`, `北京`), and not an
    expression."""
    text = text.strip()
    if not text or len(text) > _LONGEST_WORDS or len(text.split()) > _MOST_WORDS:
        return False
    if not all(sign in _NAME_SIGNS or unicodedata.category(sign)[0] in "LM" for sign in text):
        return False
    return any(word.lower() not in FUNCTIONS for word in PROSE.findall(text))


def is_label(text: str) -> bool:
    """Tell whether `text` is a date, a time, or a name with a number in it (`Room 12`, `March 5,
    2020`, `2020年3月5日`), and not a sentence."""
    text = text.strip()
    if len(text) > _LONGEST_WORDS or len(text.split()) > _MOST_WORDS or "\\" in text:
        return False
    if _TIME_OR_DATE.fullmatch(text) or _NOON.fullmatch(text):
        return True
    if not PROSE.search(text) or not any(sign.isdigit() for sign in text):
        return False
    if not text.isascii() and not re.search(r"[A-Za-z]", text):
        return all(sign.isalnum() or sign in _NAME_SIGNS for sign in text)
    words = _BETWEEN_WORDS.split(_MONTHS.sub("May", text))
    return all(_LABEL_WORD.fullmatch(word) for word in words)


def is_expression(text: str) -> bool:
    """Tell whether all of `text` can be an expression: names of functions are its only words."""
    if len(text) > MOST:
        return False
    words = [word for word in PROSE.findall(COMMAND.sub("", text)) if word.lower() not in FUNCTIONS]
    # `\\angle ABC = 40` names a corner of a figure by its points.
    return all(word.isupper() and len(word) <= 4 for word in words) and not (
        words and is_words(text)
    )


def is_time_or_date(text: str) -> bool:
    """Tell whether `text` is a time of day or a date. Read as ratios, 8:15 and 16:30 would be
    equal."""
    return _TIME_OR_DATE.fullmatch(text.strip()) is not None


def is_day(text: str) -> bool:
    """Tell whether `text` is a day of a month: `5 March`, `May 5, 2020`."""
    return _DAY.fullmatch(_STYLED.sub(r" \1", text).strip(" .*$")) is not None


def is_date(text: str) -> bool:
    """Tell whether `text` is a date in digits (`2020-01-15`), and not a difference or quotient."""
    match = _TIME_OR_DATE.fullmatch(text.strip())
    return match is not None and any(match.groups())


def read_ratio(text: str) -> tuple[Fraction, ...]:
    """Read `text` as a ratio of two or more numbers, scaled to begin with 1. Return an empty tuple
    for other text. 5:1 equals 10:2, and 5/1, but is not the number 5."""
    if len(text) > _LONGEST_WORDS or not _RATIO.fullmatch(text.strip()):
        return ()
    first, *others = (Fraction(part.strip()) for part in text.split(":"))
    return (Fraction(1), *(other / first for other in others)) if first else (first, *others)


def _without_opening(text: str) -> str:
    text = unwrapped(plain_signs(text))
    text = _POLITE.sub("", _STYLED.sub(r"\1", text).strip(" *_\"'.")).strip("\"'")
    opening = _OPENING.match(text[0].lower() + text[1:]) if text else None
    return text[opening.end() :].strip() if opening else text
