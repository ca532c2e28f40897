"""Checks the rows of a file for fine-tuning: JSON lines in one of OpenAI's forms. Linear time, with
one line in memory.
"""

from typing import Any, BinaryIO

import msgspec

from headrace.wording import quoted

MAX_LINE = 16 << 20
"""Bytes of a line."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
FORMS = (
    "a row has `messages` (supervised, reinforcement), or `input` with `messages`, "
    "`preferred_output` and `non_preferred_output` (dpo)"
)


class BadRowError(ValueError):
    """A row cannot be used. The message names the line and the reason."""


def check_rows(file: BinaryIO) -> int:
    """Return the number of rows of a file. Raises BadRowError for the first row that is wrong."""
    rows = number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise BadRowError(f"line {number} has more than {MAX_LINE >> 20} MiB: split its row")
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            row = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise BadRowError(f"line {number} is not JSON: {error}; {FORMS}") from None
        if problem := problem_of(row):
            raise BadRowError(f"line {number}: {problem}")
        rows += 1
    if not rows:
        raise BadRowError(f"the file has no rows; {FORMS}")
    return rows


def problem_of(row: Any) -> str:
    """Return what is wrong with a row. Return an empty string for a row of a known form."""
    if not isinstance(row, dict):
        return f"the row is {quoted(row)}, and must be an object; {FORMS}"
    if "messages" in row:
        return _messages(row["messages"], "messages")
    if "input" in row:
        given = row["input"]
        if not isinstance(given, dict) or "messages" not in given:
            return f"input must be an object with messages; {FORMS}"
        for name in ("preferred_output", "non_preferred_output"):
            if name not in row:
                return f"{name} is missing; {FORMS}"
            if problem := _messages(row[name], name):
                return problem
        return _messages(given["messages"], "input.messages")
    if "prompt" in row and "completion" in row:
        return f"rows with prompt and completion are not supported; {FORMS}"
    return f"the row has neither messages nor input; {FORMS}"


def _messages(messages: Any, place: str) -> str:
    if not isinstance(messages, list) or not messages:
        return f"{place} must be a list of messages"
    for number, message in enumerate(messages):
        here = f"{place}.{number}"
        if not isinstance(message, dict):
            return f"{here} must be a message, not {quoted(message)}"
        if message.get("role") not in ROLES:
            return f"{here}.role must be one of {', '.join(ROLES)}, not {_shown(message)}"
        content = message.get("content")
        if content is None and not any(message.get(k) for k in ("tool_calls", "function_call")):
            return f"{here} has neither content nor tool_calls"
        if not isinstance(content, str | list | None):
            return f"{here}.content must be text or a list of parts, not {quoted(content)}"
    return ""


def _shown(message: dict[str, Any]) -> str:
    return quoted(message["role"]) if "role" in message else "missing"
