"""Masks secrets in text that leaves its process, such as lines of logs."""

import os
import re
from collections.abc import Iterable

SHORTEST = 8
"""Characters of the shortest value that is masked wherever it stands. A shorter one is a word."""
_NAMED = re.compile(
    r"(?P<name>(?i:(?:token|password|secret|api[-_]?key)[\"']?\s?[:=]\s?[\"']?)"
    # Not within a row of dashes, each of which would be read to its end: that takes quadratic time.
    r"|(?i:bearer )|(?<![\w-])--(?i:[\w-]*(?:token|password|secret|key)) )[^\s\"',]+"
    r"|(?<=://)[^\s/@]+(?=@)|\bhf_\w+"
)
_VARIABLE = re.compile(r"(?i)(?:token|password|secret|key|keys)$")


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with `***` for each of `secrets`, and for what follows the name of a secret,
    such as `password=` and `Bearer`, or stands before the `@` of a URL."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _NAMED.sub(r"\g<name>***", text)


def secret_values(more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the values of this process' variables whose names say that they are secret, and
    `more`, longest first. Short values are left out."""
    named = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
    values = {value for value in (*named, *more) if len(value) >= SHORTEST}
    return tuple(sorted(values, key=len, reverse=True))
