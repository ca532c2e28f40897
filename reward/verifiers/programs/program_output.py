"""Compares a program's output with the expected output. Pure, linear time.

White space at the ends of lines does not count. Text and whole numbers must be the same. Expected
numbers with a decimal point or an exponent have a tolerance of 1e-6, absolute or relative, as in
the datasets' own judges.
"""

import re

TOLERANCE = 1e-6
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
    """Return the lines, without white space at their ends and without empty lines at the end."""
    # splitlines() would end a line at a form feed too.
    return [line.rstrip() for line in re.split(r"\r\n?|\n", text.rstrip())]


def _same_but_rounding(line: str, expected: str) -> bool:
    """Tell whether two lines differ at most in decimals that are equal within the tolerance."""
    # Text is at even places, numbers at odd places.
    given, wanted = _NUMBER.split(line), _NUMBER.split(expected)
    return len(given) == len(wanted) and all(
        piece == due or (place % 2 == 1 and _close(piece, due))
        for place, (piece, due) in enumerate(zip(given, wanted, strict=True))
    )


def _close(given: str, wanted: str) -> bool:
    if not any(mark in wanted for mark in ".eE"):
        return False
    number, target = float(given), float(wanted)
    return number == target or abs(number - target) <= TOLERANCE * max(1.0, abs(target))
