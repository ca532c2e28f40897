"""Counts, durations and states as parts of sentences."""

import reprlib
from typing import Any

ESTIMATED = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "copies": "copies (reference, lagged, critic, teacher)",
    "published": "the version before, to publish changes",
    "buffers": "buffers of the ranks",
    "activations": "activations",
    "logits": "logits",
    "moved": "state that is moved from the GPUs",
    "asleep": "weights of a vLLM that sleeps",
    "checkpoint": "a checkpoint while it is written",
    "newest": "the newest version",
    "runtime": "driver and libraries",
    "process": "the processes themselves",
    "workers": "the workers on its host",
    "cache": "keys and values",
    "checkpoints": "checkpoints",
    "versions": "versions for the workers",
    "groups": "groups that are too large for Redis",
}
"""The parts of an estimate for people."""
QUOTED = 200
"""Characters of a value that a sentence quotes."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = QUOTED


def counted(count: int, noun: str, plural: str = "") -> str:
    """`count` with its noun: `1 row`, `2,000 rows`. `plural`: default `noun` with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Seconds in the largest unit that fits: `42 s`, `3 min`, `5.2 h`, `3 d`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def predicate(state: str) -> str:
    """The state of a run or chain as the end of a sentence: `is running`, `has succeeded`."""
    ended = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled"}
    return ended.get(state, f"is {state}")


def on_request(name: str) -> str:
    """Return the reason of a run that the key of this name has paused."""
    return f"on request of {name}"


def quoted(value: Any) -> str:
    """A value as JSON names it, and a long one cut."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _REPR.repr(value)


def cut_at(max_tokens: int) -> str:
    """Say that `max_tokens` cut an answer of `headrace chat`."""
    return f"the answer was cut at {max_tokens:,} tokens: --max-tokens allows more"
