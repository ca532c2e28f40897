"""The known name that a mistyped one is probably meant to be."""

from collections.abc import Iterable

MOST_CHARACTERS = 100
"""Characters of a mistyped name that are compared."""


def nearest(name: str, known: Iterable[str], cutoff: float = 60) -> str | None:
    """The most similar of `known`, at least `cutoff` (of 100) alike; None for none."""
    name = name[:MOST_CHARACTERS]
    best, score = None, cutoff
    for other in known:
        alike = similarity(name, other)
        if alike > score or (best is None and alike == score):
            best, score = other, alike
    return best


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for error messages; empty if nothing known is similar."""
    near = nearest(name, known)
    return f" (did you mean {near!r}?)" if near else ""


def similarity(name: str, other: str) -> float:
    """Return the share of both texts that their longest common subsequence has, of 100."""
    if not name or not other:
        return 100.0 * (name == other)
    # Hyyrö's bit vectors (2004): a column of the table is one integer, so no text is slow.
    places: dict[str, int] = {}
    for i, character in enumerate(name):
        places[character] = places.get(character, 0) | 1 << i
    full = (1 << len(name)) - 1
    column = full
    for character in other:
        matches = column & places.get(character, 0)
        column = (column + matches | column - matches) & full
    common = len(name) - column.bit_count()
    return 200.0 * common / (len(name) + len(other))
