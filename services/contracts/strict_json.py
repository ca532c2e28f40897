"""JSON as RFC 8259 has it, which every process, Redis' scripts and the page can read again.

Python's own parser also takes NaN, Infinity, numbers beyond a double, halves of surrogate pairs,
UTF-16, and any depth that its stack allows. Such a value is accepted once and then breaks every
reader that writes it out again.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic_core import from_json

MAX_DEPTH = 200
"""Levels of lists and objects. pydantic writes 255, including the answer around a value."""


class NotJSON(ValueError):
    """The bytes are no JSON; the message says why, as the end of a sentence."""


class NotPortable(NotJSON):
    """Grammatical JSON with an invalid text or number."""

    def __init__(self, place: str, problem: str) -> None:
        """`place`: its key path, e.g. `data.template`; empty for the whole."""
        super().__init__(f"{place or 'it'} {problem}")
        self.place, self.problem = place, problem


def decode(data: bytes) -> Any:
    """The value of a JSON document in UTF-8. Raises NotJSON."""
    try:
        # Bounds the depth, and refuses half surrogates; it takes 1e400 for infinity.
        from_json(data, allow_inf_nan=False, cache_strings="none")
        return msgspec.json.decode(data)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise _reason(data, error) from None


def _reason(data: bytes, error: Exception) -> NotJSON:
    if "recursion" in str(error):
        return NotJSON(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as wrong:
        return NotJSON(f"it is not UTF-8 (byte {wrong.start})")
    except json.JSONDecodeError as wrong:
        return NotJSON(f"{wrong.msg} at character {wrong.pos}")
    except RecursionError:
        return NotJSON(f"it is nested more than {MAX_DEPTH} levels deep")
    except ValueError:
        return NotJSON("a number in it has more than 4,300 digits")
    for place, problem in _problems(value, ""):
        return NotPortable(place, problem)
    return NotJSON(str(error))


def _problems(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """(place, what is wrong there) of values that cannot be written as JSON again."""
    if isinstance(value, str) and not is_text(value):
        yield place, "holds half of a surrogate pair, which is no text"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, "is NaN, Infinity, or beyond a 64-bit float (1.8e308), which is no number"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not is_text(key):
                yield place, "has a key with half of a surrogate pair, which is no text"
            yield from _problems(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _problems(inner, f"{place}.{index}" if place else str(index))


def is_text(text: str) -> bool:
    """Whether it is Unicode text: no half of a surrogate pair is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
