"""Counts and states as parts of sentences."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """`count` with its noun: `1 row`, `2,000 rows`. `plural`: default `noun` with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def predicate(state: str) -> str:
    """The state of a run or chain as the end of a sentence: `is running`, `has succeeded`."""
    ended = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled"}
    return ended.get(state, f"is {state}")
