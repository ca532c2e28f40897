"""From a source's columns to a canonical `Row`: which column is the prompt, which the answer.

Pure: dictionaries in, rows out. Every refusal says where, what, and the way out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rapidfuzz import fuzz, process

from services.contracts.dataset import Row

PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "messages")
ANSWER_NAMES = ("answer", "solution", "gold", "target")


class DatasetError(ValueError):
    """What was handed in cannot become a dataset; the message names the place and the way out."""


@dataclass(frozen=True)
class ColumnMapping:
    """Names of the source's columns. None: the first well-known name that is there."""

    prompt: str | None = None
    answer: str | None = None

    def resolved(self, columns: Iterable[str], place: str | None = None) -> "ColumnMapping":
        """This mapping with the guesses made, for a source that has `columns`; `place`: where each
        row has its own, the first row, whose they are.

        `answer` stays None where nothing looks like one. Raises DatasetError for a column that
        is not there, or where no column can be taken for the prompt.
        """
        there = list(columns)
        for role, name in (("prompt", self.prompt), ("answer", self.answer)):
            if name is not None and name not in there:
                where = f"{place} has" if place else "there is"
                listed = "it has" if place else "columns"
                raise DatasetError(
                    f"{where} no column {name!r} to take the {role} from{_nearest(name, there)}; "
                    f"{listed}: {_listed(there)}"
                )
        prompt = self.prompt or _known(PROMPT_NAMES, there)
        if prompt is None:
            raise DatasetError(
                "no column looks like the prompt (looked for "
                f"{', '.join(PROMPT_NAMES)}); columns: {_listed(there)}. Name it in the mapping: "
                '{"prompt": "COLUMN"}, or --prompt COLUMN on the command line'
            )
        candidates = [name for name in there if name != prompt]
        return ColumnMapping(prompt, self.answer or _known(ANSWER_NAMES, candidates))


def check_unanswered(place: str, source: Mapping[str, Any], first: str) -> None:
    """Raise DatasetError where a row has an answer and `first`, the place of the row that tells the
    columns, has none: the others' answers would be lost among the meta."""
    if (name := _known(ANSWER_NAMES, list(source))) is not None:
        raise DatasetError(
            f"{first} has no answer, and {place} has one (column {name!r}): give every row one, "
            "null where there is none"
        )


def row_from(place: str, source: Mapping[str, Any], mapping: ColumnMapping) -> Row:
    """One canonical row; columns that are not mapped go to `meta`.

    `place` (e.g. `line 3`) stands in errors. `mapping` is a resolved one. An object in an
    unmapped column `meta` is taken as the meta itself, so that exported rows come back as they
    were. Raises DatasetError.
    """
    assert mapping.prompt is not None
    for name in (mapping.prompt, mapping.answer):
        if name is not None and name not in source:
            raise DatasetError(
                f"{place} has no column {name!r}{_nearest(name, list(source))}; it has: "
                f"{_listed(list(source))}"
            )
    rest = {
        key: value for key, value in source.items() if key not in (mapping.prompt, mapping.answer)
    }
    inner = rest.get("meta")
    if isinstance(inner, dict):
        del rest["meta"]
        rest = {**inner, **rest}
    prompt = source[mapping.prompt]
    check_prompt(place, prompt, mapping.prompt)
    answer = None if mapping.answer is None else source[mapping.answer]
    return Row(prompt=prompt, answer=answer, meta=rest)


def check_prompt(place: str, prompt: Any, column: str = "prompt") -> None:
    """Raise DatasetError where `prompt` is neither text nor a chat, or says nothing."""
    where = f"{place}: the prompt" + (f" (column {column!r})" if column != "prompt" else "")
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
        if not isinstance(message.get("content"), str | list):
            raise DatasetError(f"{where}: message {number} has no content")
    if not any(message["content"] for message in prompt):
        raise DatasetError(f"{where} is empty: fill it in or remove the row")


def _known(names: tuple[str, ...], there: list[str]) -> str | None:
    folded = {name.strip().lower(): name for name in reversed(there)}
    return next((folded[name] for name in names if name in folded), None)


def _nearest(name: str, there: list[str]) -> str:
    near = process.extractOne(name, there, scorer=fuzz.ratio, score_cutoff=60)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _listed(columns: list[str], most: int = 20) -> str:
    if not columns:
        return "none"
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(repr(name) for name in columns[:most]) + more


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    return names.get(type(value), "a list" if isinstance(value, list) else "text")
