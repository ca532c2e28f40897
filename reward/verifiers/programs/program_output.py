"""Compares a program's output with the expected output. Pure, linear time.

White space around a line does not count, nor does the length of white space between two words: the
judges of APPS and TACO compare words, and LiveCodeBench's judge splits lines of numbers. Text must
be the same, and so must two whole numbers. If a number has a decimal point or an exponent, both are
equal within 1e-6, as in the datasets' own judges: absolute, or relative to an expected decimal. A
whole number of any size differs from its neighbour.
"""

import re

TOLERANCE = 1e-6
_EXACT = 2.0**53
"""Floats tell whole numbers below this bound apart."""
_NUMBER = re.compile(
    r"(?<![\w.])([+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+)(?![\w.])", re.ASCII
)


def difference(given: str, wanted: str) -> str:
    """Return the first difference as the end of a sentence. Return an empty string without a
    difference."""
    lines, expected = _lines(given), _lines(wanted)
    for number, (printed, due) in enumerate(zip(lines, expected, strict=False), 1):
        if printed != due and not _same_but_rounding(printed, due):
            return f"printed {printed[:80]!r} in line {number}, not {due[:80]!r}"
    if len(lines) != len(expected):
        return f"printed {len(lines)} lines, not {len(expected)}"
    return ""


def _lines(text: str) -> list[str]:
    """Return the lines with one blank between two words, without empty lines around them."""
    # splitlines() would end a line at a form feed too.
    return [" ".join(line.split()) for line in re.split(r"\r\n?|\n", text.strip())]


def _same_but_rounding(line: str, expected: str) -> bool:
    """Tell whether two lines differ at most in decimals that are equal within the tolerance."""
    # Text is at even places, numbers at odd places.
    given, wanted = _NUMBER.split(line), _NUMBER.split(expected)
    return len(given) == len(wanted) and all(
        piece == due or (place % 2 == 1 and _close(piece, due))
        for place, (piece, due) in enumerate(zip(given, wanted, strict=True))
    )


def _close(given: str, wanted: str) -> bool:
    decimal = any(mark in wanted for mark in ".eE")
    if not decimal and not any(mark in given for mark in ".eE"):
        return False
    number, target = float(given), float(wanted)
    if not decimal and abs(target) >= _EXACT:
        return False
    scale = max(1.0, abs(target)) if decimal else 1.0
    return number == target or abs(number - target) <= TOLERANCE * scale
