"""From a source's columns to a `Row`: which column is the prompt, which the answer.

Pure: dictionaries in, rows out. Every refusal names the place, the problem and the way out.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from services.contracts.nearest import did_you_mean
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import for_template, in_one_piece
from services.contracts.rows.preference import PAIR, shared_prompt

PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "messages", "text")
ANSWER_NAMES = ("answer", "solution", "gold", "target")
Columns = str | tuple[str, ...]
"""A column's name, a dotted path into nested columns, or several of these."""
Source = Mapping[str, Any]
"""One row of a source: its columns by name."""
ANSWER_LAYOUTS: tuple[Columns, ...] = (
    "reward_model.ground_truth",  # verl
    ("test", "entry_point", "prompt"),  # HumanEval
    PAIR,  # preferences: TRL, UltraFeedback
)
MAX_OTHER_BYTES = 64 * 1024
"""Bytes of JSON that a row's unmapped columns may take: each scored completion carries them."""
MAX_ROW_BYTES = 16 << 20
"""Bytes of one row of a file. A million tokens are about four million."""
MAX_COLUMNS = 4096
_MISSING = object()


class DatasetError(ValueError):
    """The input cannot become a dataset; the message names the place and the way out."""


def too_large(place: str) -> str:
    """The sentence for a row of more than MAX_ROW_BYTES."""
    return f"{place} takes more than {MAX_ROW_BYTES >> 20} MiB, the most that one row may: cut it"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", use_attribute_docstrings=True))
class ColumnMapping:
    """The source's columns by their role. None: guessed from well-known names."""

    prompt: str | None = None
    """The column that is the prompt, or a path like `extra.question`."""
    answer: Columns | None = None
    """The column that is the answer, or a path like `reward_model.ground_truth`; of several the
    answer is an object of them. The prompt's own column, if that holds chats: the last turn of
    each chat."""
    keep: tuple[str, ...] | None = None
    """Other columns that rows keep for verifiers; null: all of them."""

    def resolved(self, first: Source, place: str | None = None) -> "ColumnMapping":
        """This mapping with the guesses made, by the `first` row of the source. `place` is that
        row's, if each row has columns of its own.

        `answer` stays None where nothing looks like one. Raises DatasetError for a column that
        is not there, or where no column can be taken for the prompt.
        """
        for role, names in (("prompt", self.prompt), ("answer", self.answer), ("rest", self.keep)):
            if len(_tuple(names)) > MAX_COLUMNS:
                raise DatasetError(
                    f"the mapping names {len(_tuple(names)):,} columns to take the {role} from; "
                    f"{MAX_COLUMNS} is the most"
                )
            for name in _tuple(names):
                if not _has(first, name):
                    where = f"{place} has" if place else "there is"
                    listed = "it has" if place else "columns"
                    raise DatasetError(
                        f"{where} no column {name!r} to take the {role} from"
                        f"{_nearest(name, first)}; {listed}: {names_in(first)}"
                    )
        leaves = [_leaf(name) for name in _tuple(self.answer)]
        if twice := {name for name in leaves if leaves.count(name) > 1}:
            raise DatasetError(
                f"several of the answer's columns are called {', '.join(sorted(twice))}: choose one"
            )
        prompt = self.prompt or _known(PROMPT_NAMES, first)
        if prompt is None and self.answer in (None, PAIR) and all(_has(first, n) for n in PAIR):
            # Two whole conversations: what they begin with is the prompt.
            return ColumnMapping(PAIR[0], PAIR, self.keep)
        if prompt is None:
            raise DatasetError(
                "no column looks like the prompt (looked for "
                f"{', '.join(PROMPT_NAMES)}); columns: {names_in(first)}. Name it in the mapping: "
                '{"prompt": "COLUMN"}, or --prompt COLUMN on the command line'
            )
        answer = self.answer or guessed_answer(first, prompt)
        if answer is None and _ends_with_answer(_value(first, prompt)):
            answer = prompt
        return ColumnMapping(prompt, answer, self.keep)


def guessed_answer(source: Source, prompt: str) -> Columns | None:
    """The columns of `source` that look like the answer to the column `prompt`, if any do."""
    rest = {name: value for name, value in source.items() if name != prompt}
    layouts = (c for c in ANSWER_LAYOUTS if all(_has(source, name) for name in _tuple(c)))
    return _known(ANSWER_NAMES, rest) or next(layouts, None)


def row_from(place: str, source: Source, mapping: ColumnMapping) -> Row:
    """One canonical row with the unmapped columns in `columns`.

    `place` (e.g. `line 3`) stands in errors. `mapping` is a resolved one. An object in an
    unmapped column `columns` is taken as the columns themselves, so that exported rows come back
    as they were. Raises DatasetError.
    """
    assert mapping.prompt is not None
    used = (mapping.prompt, *_tuple(mapping.answer))
    for name in used:
        if not _has(source, name):
            raise DatasetError(
                f"{place} has no column {name!r}{_nearest(name, source)}; it has: "
                f"{names_in(source)}"
            )
    rest = {key: value for key, value in source.items() if key not in used}
    inner = rest.get("columns")
    if isinstance(inner, dict):
        del rest["columns"]
        rest = {**inner, **rest}
    if mapping.keep is not None:
        rest = {key: value for key, value in rest.items() if key in mapping.keep}
    check_columns(place, rest)
    prompt = _value(source, mapping.prompt)
    if mapping.answer == PAIR and mapping.prompt == PAIR[0]:
        try:
            prompt = shared_prompt(*(source[name] for name in PAIR))
        except ValueError as error:
            raise DatasetError(f"{place} {error}") from error
        answer: Any = {name: source[name][-1] for name in PAIR}
    elif mapping.answer == mapping.prompt:
        if not isinstance(prompt, list):
            raise DatasetError(
                f"{place}: column {mapping.prompt!r} is {_kind(prompt)}, and the answer is the "
                "last turn of a chat there: make it a list of messages, or remove the row"
            )
        if not _ends_with_answer(prompt):
            raise DatasetError(
                f"{place}: the chat (column {mapping.prompt!r}) does not end with an assistant's "
                "turn, and the last turn is the answer: give every chat one, or remove the row"
            )
        *prompt, last = prompt
        if _ends_with_answer(prompt):
            raise DatasetError(
                f"{place}: the chat (column {mapping.prompt!r}) ends with two turns of the "
                "assistant, one right after the other: make them one, or put the user's or the "
                "tool's turn between them"
            )
        # With its reasoning, or its calls, where it has some: supervised runs learn them, too.
        try:
            content = in_one_piece(len(prompt) + 1, last.get("content"))
        except ValueError as error:
            raise DatasetError(f"{place}: the chat (column {mapping.prompt!r}): {error}") from None
        answer = last if last.keys() - {"role", "content"} else content
        if not (content or last.get("tool_calls")):
            raise DatasetError(
                f"{place}: the last turn of the chat (column {mapping.prompt!r}), which is the "
                "answer, has no content: fill it in or remove the row"
            )
    elif isinstance(mapping.answer, tuple):
        answer = {_leaf(name): _value(source, name) for name in mapping.answer}
    else:
        answer = None if mapping.answer is None else _value(source, mapping.answer)
    check_prompt(place, prompt, mapping.prompt)
    return Row(prompt=prompt, answer=answer, columns=rest)


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
    """Raise DatasetError unless `prompt` is text or a chat, not empty, and not ended by the
    assistant."""
    where = f"{place}: the prompt" + (f" (column {column!r})" if column != "prompt" else "")
    quoted = json.dumps(column)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise DatasetError(f"{where} is empty: fill it in or remove the row")
        return
    if not isinstance(prompt, list):
        raise DatasetError(
            f"{where} is {_kind(prompt)}: a prompt is text, or a list of messages like "
            '[{"role": "user", "content": "…"}]'
        )
    if not prompt:
        raise DatasetError(f"{where} is a chat without messages: fill it in or remove the row")
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, dict):
            raise DatasetError(f"{where}: message {number} is {_kind(message)}, not an object")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise DatasetError(
                f"{where}: message {number} has no role (system, user, assistant or tool)"
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
    if _ends_with_answer(prompt):
        raise DatasetError(
            f"{where} ends with an assistant's turn, which the policy would be shown: remove that "
            f'turn, or take it for the answer (of a file, with the mapping {{"prompt": {quoted}, '
            f'"answer": {quoted}}})'
        )


def _ends_with_answer(prompt: Any) -> bool:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def _tuple(names: Columns | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def _has(source: Source, path: str) -> bool:
    return _value(source, path) is not _MISSING


def _value(source: Source, path: str) -> Any:
    """The column `path`, else what the dotted path leads to, else _MISSING."""
    if path in source:
        return source[path]
    value: Any = source
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _known(names: tuple[str, ...], there: Iterable[str]) -> str | None:
    folded = {name.strip().lower(): name for name in reversed(list(there))}
    return next((folded[name] for name in names if name in folded), None)


def _nearest(name: str, source: Source) -> str:
    inner = (
        f"{key}.{k}" for key, value in source.items() if isinstance(value, dict) for k in value
    )
    return did_you_mean(name, [*source, *inner])


def names_in(source: Source, most: int = 20) -> str:
    """The names of its columns, at most `most` of them, for error messages."""
    columns = list(source)
    if not columns:
        return "none"
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(repr(name) for name in columns[:most]) + more


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), "a list" if isinstance(value, list) else "text")
