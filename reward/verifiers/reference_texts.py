"""Reads the reference answers of a row as texts."""

from typing import Any

from reward.verifiers.base import BadReferenceError, shown


def references(answer: Any) -> list[str]:
    """Return the reference answers as texts. A list has several right answers. Raises
    BadReferenceError for anything but text, numbers and lists of them."""
    answers = answer if isinstance(answer, list) else [answer]
    for text in answers:
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise BadReferenceError(
                f"reference answer {shown(answer)} is {type(text).__name__}, not text or a number"
            )
    if not answers:
        raise BadReferenceError("the list of reference answers is empty")
    return [str(text) for text in answers]
