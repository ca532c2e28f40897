"""From a source's columns to a `Row`: which columns are the prompt, which the answer.

Pure: dictionaries in, rows out. `row_from` has `row_checks` check the prompt. Every refusal names
the place, the problem and the way out.
"""

import string
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from headrace.nearest import did_you_mean
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import in_one_piece
from services.contracts.rows.preference import PAIR, shared_prompt
from services.datasets.chats import as_messages
from services.datasets.row_checks import (
    MAX_COLUMNS,
    DatasetError,
    check_columns,
    check_prompt,
    ends_with_answer,
    kind_of,
    names_in,
)

PROMPT_NAMES = (
    "prompt", "question", "problem", "instruction", "messages", "conversations", "conversation",
    "text",
)  # fmt: skip
ANSWER_NAMES = ("answer", "solution", "gold", "target", "ground_truth")
WRITTEN_NAMES = ("output", "completion", "response")
"""Answers for supervised runs to imitate. A column of a reference, if there is one, goes first."""
INPUT_NAMES = ("input", "context")
"""Columns that complete an `instruction`: Alpaca's and Dolly's."""
Columns = str | tuple[str, ...]
"""A column's name, a dotted path into nested columns, or a tuple of names."""
Source = Mapping[str, Any]
"""One row of a source: its columns by name."""
ANSWER_LAYOUTS: tuple[Columns, ...] = (
    "reward_model.ground_truth",  # verl
    ("test", "entry_point", "prompt"),  # HumanEval
    PAIR,  # preferences: TRL, UltraFeedback
)
MESSAGE = ("role", "content", "weight", "train")
"""Keys of a last turn that the answer of its row does not need, if the turn is trained."""
_MISSING = object()


@dataclass(frozen=True, config=ConfigDict(extra="forbid", use_attribute_docstrings=True))
class ColumnMapping:
    """The source's columns by their role. None: guess the column by well-known names."""

    prompt: Columns | None = None
    """The column that is the prompt, or a path like `extra.question`. The texts of several columns
    are joined by blank lines; a row may leave out some of them."""
    answer: Columns | None = None
    """The column that is the answer, or a path like `reward_model.ground_truth`; of several the
    answer is an object of them. The prompt's own column, if that holds chats: the last turn of
    each chat."""
    keep: tuple[str, ...] | None = None
    """Other columns that rows keep for verifiers; null: all of them."""

    @property
    def prompts(self) -> tuple[str, ...]:
        return _tuple(self.prompt)

    @property
    def answers(self) -> tuple[str, ...]:
        return _tuple(self.answer)

    @property
    def used(self) -> tuple[str, ...]:
        return (*self.prompts, *self.answers)

    def resolved(self, first: Source, place: str | None = None) -> "ColumnMapping":
        """This mapping with the guesses made, by the `first` row of the source. `place` is that
        row's, if each row has columns of its own.

        `answer` stays None if no column looks like an answer. Raises DatasetError for a column that
        is missing, or if no column looks like the prompt.
        """
        for role, names in (("prompt", self.prompt), ("answer", self.answer), ("rest", self.keep)):
            if len(_tuple(names)) > MAX_COLUMNS:
                raise DatasetError(
                    f"the mapping names {len(_tuple(names)):,} columns to take the {role} from; "
                    f"{MAX_COLUMNS} is the most"
                )
            # Another row may have what the first leaves out of a prompt of several columns.
            optional = place and role == "prompt" and any(has(first, name) for name in self.prompts)
            for name in () if optional else _tuple(names):
                if not has(first, name):
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
        if prompt is None and self.answer in (None, PAIR) and all(has(first, n) for n in PAIR):
            # Two whole conversations: what they begin with is the prompt.
            return ColumnMapping(PAIR[0], PAIR, self.keep)
        if prompt is None:
            raise DatasetError(
                "no column looks like the prompt (looked for "
                f"{', '.join(PROMPT_NAMES)}); columns: {names_in(first)}. Name it in the mapping: "
                '{"prompt": "COLUMN"}, or --prompt COLUMN on the command line'
            )
        if self.prompt is None:
            prompt = _with_inputs(str(prompt), first, _tuple(self.answer), bool(place))
        elif len(self.prompts) == 1:
            prompt = self.prompts[0]
        answer = self.answer or guessed_answer(first, _tuple(prompt))
        try:
            if answer is None and isinstance(prompt, str):
                answer = prompt if ends_with_answer(_chat(first, prompt)) else None
        except ValueError as error:
            raise DatasetError(f"{place or 'the first row'} {error}") from None
        return ColumnMapping(prompt, answer, self.keep)

    def seen(self, columns: Iterable[str]) -> "ColumnMapping":
        """Return this mapping without the prompt's columns that are not among `columns`, the
        columns that the rows have."""
        there = set(columns)
        left = tuple(name for name in self.prompts if name in there)
        return replace(self, prompt=left[0] if len(left) == 1 else left)


def _with_inputs(prompt: str, first: Source, answer: tuple[str, ...], own_columns: bool) -> Columns:
    """Return the prompt's columns, with the column of an input if an instruction may have one. If
    each row has its own columns, a later row may have an input."""
    if prompt.strip().lower() != "instruction":
        return prompt
    names = [_known((name,), first) or (name if own_columns else None) for name in INPUT_NAMES]
    inputs = [name for name in names if name and name not in answer]
    return (prompt, *inputs) if inputs else prompt


def guessed_answer(source: Source, prompts: tuple[str, ...]) -> Columns | None:
    """Return the columns of `source` that look like the answer to the prompt, if any do."""
    rest = [name for name in source if name not in prompts]
    layouts = (c for c in ANSWER_LAYOUTS if all(has(source, name) for name in _tuple(c)))
    return _known(ANSWER_NAMES, rest) or next(layouts, None) or _known(WRITTEN_NAMES, rest)


def row_from(place: str, source: Source, mapping: ColumnMapping) -> Row:
    """One canonical row with the unmapped columns in `columns`.

    `place` (e.g. `line 3`) stands in errors. `mapping` is a resolved one. An object in an
    unmapped column `columns` is taken as the columns themselves, so that exported rows come back
    as they were. Raises DatasetError.
    """
    _check_there(place, source, mapping)
    rest = {key: value for key, value in source.items() if key not in mapping.used}
    inner = rest.get("columns")
    if isinstance(inner, dict):
        del rest["columns"]
        rest = {**inner, **rest}
    if mapping.keep is not None:
        rest = {key: value for key, value in rest.items() if key in mapping.keep}
    check_columns(place, rest)
    try:
        prompt, answer = _prompt_and_answer(place, source, mapping)
    except DatasetError:
        raise
    except ValueError as error:
        raise DatasetError(f"{place} {error}") from error
    check_prompt(place, prompt, " + ".join(mapping.prompts))
    return Row(prompt=prompt, answer=answer, columns=rest)


def _check_there(place: str, source: Source, mapping: ColumnMapping) -> None:
    """Raise DatasetError for a row without a mapped column, or without any column of its prompt."""
    several = len(mapping.prompts) > 1
    wanted = _tuple(mapping.answer) if several else mapping.used
    if several and not any(has(source, name) for name in mapping.prompts):
        wanted = mapping.prompts[:1]
    for name in wanted:
        if not has(source, name):
            raise DatasetError(
                f"{place} has no column {name!r}{_nearest(name, source)}; it has: "
                f"{names_in(source)}"
            )


def _prompt_and_answer(place: str, source: Source, mapping: ColumnMapping) -> tuple[Any, Any]:
    """Return the prompt and the answer of a row. Raises ValueError, in words that follow the row's
    place, and DatasetError."""
    if mapping.answer == PAIR and mapping.prompt == PAIR[0]:
        chosen, rejected = (_chat(source, name) for name in PAIR)
        return shared_prompt(chosen, rejected), {PAIR[0]: chosen[-1], PAIR[1]: rejected[-1]}
    if len(mapping.prompts) == 1:
        prompt = _chat(source, mapping.prompts[0])
    else:
        there = [name for name in mapping.prompts if has(source, name)]
        parts = [_part(name, value_of(source, name)) for name in there]
        prompt = "\n\n".join(part for part in parts if part.strip())
    if mapping.answer is None:
        return prompt, None
    if mapping.answer == mapping.prompt:
        return _split_chat(place, prompt, str(mapping.prompt))
    if isinstance(mapping.answer, tuple):
        pair = mapping.answer == PAIR
        values = {n: _chat(source, n) if pair else value_of(source, n) for n in mapping.answer}
        return prompt, {_leaf(name): value for name, value in values.items()}
    return prompt, value_of(source, mapping.answer)


def _part(name: str, value: Any) -> str:
    """Return the text of one of a prompt's columns. Choices get their letters."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    texts = isinstance(value, list) and all(isinstance(choice, str) for choice in value)
    if texts and len(value) <= len(string.ascii_uppercase):
        letters = zip(string.ascii_uppercase, value, strict=False)
        return "\n".join(f"{letter}. {choice}" for letter, choice in letters)
    raise ValueError(
        f"has {kind_of(value)} in column {name!r}, and the prompt's columns are joined as text: "
        "make it text, or a list of choices that are text"
    )


def _split_chat(place: str, chat: Any, column: str) -> tuple[list[Any], Any]:
    """Split a chat into the turns before the last, and the last turn, which is the answer. Raises
    DatasetError."""
    if not isinstance(chat, list):
        raise DatasetError(
            f"{place}: column {column!r} is {kind_of(chat)}, and the answer is the "
            "last turn of a chat there: make it a list of messages, or remove the row"
        )
    if not ends_with_answer(chat):
        raise DatasetError(
            f"{place}: the chat (column {column!r}) does not end with an assistant's "
            "turn, and the last turn is the answer: give every chat one, or remove the row"
        )
    *prompt, last = chat
    if ends_with_answer(prompt):
        raise DatasetError(
            f"{place}: the chat (column {column!r}) ends with two turns of the "
            "assistant, one right after the other: make them one, or put the user's or the "
            "tool's turn between them"
        )
    # Reasoning and calls stay with the answer: supervised runs learn them, too.
    try:
        content = in_one_piece(len(prompt) + 1, last.get("content"))
    except ValueError as error:
        raise DatasetError(f"{place}: the chat (column {column!r}): {error}") from None
    if not (content or last.get("tool_calls")):
        raise DatasetError(
            f"{place}: the last turn of the chat (column {column!r}), which is the "
            "answer, has no content: fill it in or remove the row"
        )
    is_trained = last.get("weight") in (None, 1) and last.get("train") in (None, True)
    is_plain = all(value in (None, []) for key, value in last.items() if key not in MESSAGE)
    return prompt, content if is_plain and is_trained else last


def _chat(source: Source, path: str) -> Any:
    """Return the column's value. A conversation in another form gets the form of OpenAI's API."""
    try:
        return as_messages(value_of(source, path))
    except ValueError as error:
        raise ValueError(f"has a conversation (column {path!r}) whose {error}") from None


def _tuple(names: Columns | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def has(source: Source, path: str) -> bool:
    """Whether a row has the column, or the value that a dotted path leads to."""
    return value_of(source, path) is not _MISSING


def value_of(source: Source, path: str) -> Any:
    """Return the column `path`, or the value at the dotted path, or _MISSING."""
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
