"""Whether a program has printed what it should. Pure, linear time.

Lines are compared without white space at their ends. Text and whole numbers have to be the same.
Numbers that should have a decimal point or an exponent may differ by 1e-6, absolute or relative, as
the judges of these datasets have it.
"""

import re

TOLERANCE = 1e-6
_NUMBER = re.compile(
    r"(?<![\w.])([+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+)(?![\w.])", re.ASCII
)


def difference(given: str, wanted: str) -> str:
    """The first difference as the end of a sentence; empty if the program has printed it all."""
    lines, expected = _lines(given), _lines(wanted)
    for number, (one, other) in enumerate(zip(lines, expected, strict=False), 1):
        if one != other and not _same_but_rounding(one, other):
            return f"printed {one[:80]!r} in line {number}, not {other[:80]!r}"
    if len(lines) != len(expected):
        return f"printed {len(lines)} lines, not {len(expected)}"
    return ""


def _lines(text: str) -> list[str]:
    """Lines, without white space at their ends and empty lines at the end."""
    # Not splitlines(): for it a form feed ends a line, too.
    return [line.rstrip() for line in re.split(r"\r\n?|\n", text.rstrip())]


def _same_but_rounding(line: str, expected: str) -> bool:
    """Whether two lines are the same but for decimals that are as good as equal."""
    # Text at even places, numbers at odd ones.
    given, wanted = _NUMBER.split(line), _NUMBER.split(expected)
    return len(given) == len(wanted) and all(
        one == other or (place % 2 == 1 and _close(one, other))
        for place, (one, other) in enumerate(zip(given, wanted, strict=True))
    )


def _close(given: str, wanted: str) -> bool:
    if not any(mark in wanted for mark in ".eE"):
        return False
    one, other = float(given), float(wanted)
    return one == other or abs(one - other) <= TOLERANCE * max(1.0, abs(other))
