"""What a question of the diagnosis answers with."""

from services.contracts.why import Cause

Verdict = tuple[Cause, str]
"""The cause, and the sentence that says it."""


def so_long(seconds: float | None) -> str:
    """`, for 12 s now`; empty if that is not known."""
    return f", for {seconds:.0f} s now" if seconds is not None else ""
