"""The known name that a mistyped one is probably meant to be."""

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 60) -> str | None:
    """The most similar of `known`, at least `cutoff` (of 100) alike; None for none."""
    # Most commands never need it, and start without.
    from rapidfuzz import fuzz, process

    match = process.extractOne(name[:100], list(known), scorer=fuzz.ratio, score_cutoff=cutoff)
    return match[0] if match else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for error messages; empty if nothing known is similar."""
    near = nearest(name, known)
    return f" (did you mean {near!r}?)" if near else ""
