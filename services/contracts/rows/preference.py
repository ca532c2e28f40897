"""Preference rows: a prompt with a `chosen` and a `rejected` answer. Pure.

Each is text, an assistant's message, or a whole conversation that ends with one.
"""

from typing import Any, Literal

from services.contracts.rows.dataset import Row

Preferred = Literal["chosen", "rejected"]
PAIR: tuple[Preferred, Preferred] = ("chosen", "rejected")
"""The two answers of a row, by the names of their columns."""
WAY_OUT = (
    "upload rows of a prompt, a chosen and a rejected answer, each text or a chat that ends with "
    "an assistant's turn"
)


def preferred(row: Row, which: Preferred) -> Row:
    """`row` with its `which` answer for its answer. Raises ValueError, in words that follow the
    row's number."""
    given = row.answer if isinstance(row.answer, dict) and which in row.answer else row.columns
    if which not in given:
        raise ValueError(f"has no `{which}` answer: {WAY_OUT}")
    return Row(prompt=row.prompt, answer=_answer(row, which, given[which]), columns=row.columns)


def _answer(row: Row, which: Preferred, value: Any) -> str | dict[str, Any]:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and _of_assistant(value):
        return value
    if not isinstance(value, list) or not value or not _of_assistant(value[-1]):
        raise ValueError(f"has a `{which}` answer that is none: {WAY_OUT}")
    *before, answer = value
    prompt: Any = row.prompt
    asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    if before and _words(before) != _words(asked):
        raise ValueError(
            f"has a `{which}` conversation that does not begin with the row's prompt: let it, or "
            "leave its assistant's turn alone"
        )
    chosen: dict[str, Any] = answer
    return chosen


def shared_prompt(chosen: Any, rejected: Any) -> list[dict[str, Any]]:
    """Return the prompt that two whole conversations, `chosen` and `rejected`, share. Raises
    ValueError if they share no prompt, with a message that follows the row's place."""
    for which, chat in zip(PAIR, (chosen, rejected), strict=True):
        if not (isinstance(chat, list) and len(chat) > 1 and _of_assistant(chat[-1])):
            raise ValueError(
                f"has no prompt, and its `{which}` answer is no conversation from which to take "
                f"it: {WAY_OUT}"
            )
    if _words(chosen[:-1]) != _words(rejected[:-1]):
        raise ValueError(
            "has no prompt, and its `chosen` and `rejected` conversations differ before the last "
            "turn: let them ask the same, or remove the row"
        )
    prompt: list[dict[str, Any]] = chosen[:-1]
    return prompt


def _of_assistant(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") == "assistant"


def _words(chat: list[Any]) -> list[Any]:
    """Return the fields of a chat by which chats are compared."""
    keys = ("role", "content", "tool_calls")
    return [[t.get(key) for key in keys] if isinstance(t, dict) else t for t in chat]
