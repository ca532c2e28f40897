"""The answer to a question of the diagnosis."""

from services.contracts.why import Cause

Verdict = tuple[Cause, str]
"""A cause, and its sentence."""


def so_long(seconds: float | None) -> str:
    """Return `, for 12 s now`, or '' for an unknown duration."""
    return f", for {seconds:.0f} s now" if seconds is not None else ""
