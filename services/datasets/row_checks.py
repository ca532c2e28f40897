"""Checks of the rows of a dataset. Every refusal names the place, the problem and the way out.

Pure.
"""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from services.contracts.rows.messages import for_template

MAX_OTHER_BYTES = 64 * 1024
"""Bytes of JSON that a row's unmapped columns may take: each scored completion carries them."""
MAX_ROW_BYTES = 16 << 20
"""Bytes of one row of a file. A million tokens are about four million."""
MAX_COLUMNS = 4096


class DatasetError(ValueError):
    """The input cannot become a dataset; the message names the place and the way out."""


def too_large(place: str) -> str:
    """Return the sentence about a row of more than MAX_ROW_BYTES."""
    return f"{place} takes more than {MAX_ROW_BYTES >> 20} MiB, the most that one row may: cut it"


def too_many_columns(place: str, columns: int) -> str:
    """Return the sentence about a row of more than MAX_COLUMNS columns."""
    return f"{place} has {columns} columns; {MAX_COLUMNS} is the most: leave out what no one needs"


def names_in(source: Iterable[str], most: int = 20) -> str:
    """List column names for error messages, at most `most` of them."""
    columns = list(source)
    if not columns:
        return "none"
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(repr(name) for name in columns[:most]) + more


def kind_of(value: Any) -> str:
    """Name the type of a JSON value for error messages: `null`, `a list`, `text`."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), "a list" if isinstance(value, list) else "text")


def check_columns(place: str, columns: dict[str, Any]) -> None:
    """Raise DatasetError for unmapped columns that are too large."""
    size = len(msgspec.json.encode(columns))
    if size > MAX_OTHER_BYTES:
        largest = max(columns, key=lambda name: len(msgspec.json.encode(columns[name])))
        raise DatasetError(
            f"{place}: its unmapped columns take {size:,} bytes, {largest!r} most of them, and a "
            f"row keeps {MAX_OTHER_BYTES:,} for verifiers. Of a file, name those to keep in the "
            'mapping: {"keep": ["COLUMN"]} ([]: none), or --keep COLUMN on the command line'
        )


def check_prompt(place: str, prompt: Any, column: str = "prompt") -> None:
    """Raise DatasetError for an empty prompt, for a prompt that is neither text nor a chat, and for
    a chat whose last turn is the assistant's."""
    where = f"{place}: the prompt" + (f" (column {column!r})" if column != "prompt" else "")
    quoted = json.dumps(column)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise DatasetError(f"{where} is empty: fill it in or remove the row")
        return
    if not isinstance(prompt, list):
        raise DatasetError(
            f"{where} is {kind_of(prompt)}: a prompt is text, or a list of messages like "
            '[{"role": "user", "content": "…"}]'
        )
    if not prompt:
        raise DatasetError(f"{where} is a chat without messages: fill it in or remove the row")
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, dict):
            raise DatasetError(f"{where}: message {number} is {kind_of(message)}, not an object")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise DatasetError(
                f"{where}: message {number} has no role (system, user, assistant or tool); it has "
                f"{names_in(message)}"
            )
        called = message.get("content") is None and message.get("tool_calls")
        if not called and not isinstance(message.get("content"), str | list):
            raise DatasetError(f"{where}: message {number} has no content")
    try:
        for_template(prompt)
    except ValueError as error:
        raise DatasetError(f"{where}: {error}") from None
    if not any(message.get("content") for message in prompt):
        raise DatasetError(f"{where} is empty: fill it in or remove the row")
    if ends_with_answer(prompt):
        raise DatasetError(
            f"{where} ends with an assistant's turn, which the policy would be shown: remove that "
            f'turn, or take it for the answer (of a file, with the mapping {{"prompt": {quoted}, '
            f'"answer": {quoted}}})'
        )


def ends_with_answer(prompt: Any) -> bool:
    """Whether a prompt is a chat whose last turn is the assistant's."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    return isinstance(last, dict) and last.get("role") == "assistant"
