"""Probable mistakes in the rows of an upload, counted over all rows.

Pure. A finding refuses nothing: each is right for some file.
"""

import re
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import xxhash

from headrace.wording import counted
from services.contracts.rows.dataset import Row
from services.datasets.chats import KNOWN
from services.datasets.columns import ColumnMapping, Source, value_of
from services.datasets.row_checks import MAX_COLUMNS, names_in

ASKED = frozenset(
    {
        "input", "inputs", "context", "contexts", "passage", "article", "document", "documents",
        "choices", "options", "premise", "hypothesis", "sentence", "table", "story", "history",
        "system", "system_prompt", "instruction", "instructions", "query", "hint", "schema",
        "image", "images", "audio", "video", "starter_code",
    }
)  # fmt: skip
"""Columns that a question often needs."""
NO_VALUE = frozenset({"none", "nan", "null", "<na>", "undefined"})
"""How programs write a missing value as text."""
DECIMAL = re.compile(r"[+-]?[0-9]+\.([0-9]+)")
"""A number with a point; group 1: the digits behind it."""
MAX_NAME = 200
"""Characters of a column's name that is counted."""
MOST_ROLES = 5
FEW = 3
"""Fewer rows may have equal answers by chance."""


class Findings:
    """Counts findings over the rows of one upload. `mapping` is None for a well-known file."""

    def __init__(self, mapping: ColumnMapping | None) -> None:
        self._mapping = mapping
        self._columns: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._roles: dict[str, int] = {}
        self._prompts, self._pairs = array("Q"), array("Q")
        self._same = SameAnswer()
        self._float = ""
        self._empty = self._shown = self._written = self._whole = self._floats = self._chats = 0
        self.equal_pairs = 0
        """Rows that were left out, as their chosen answer equals the rejected one."""

    def add(self, source: Source, row: Row) -> None:
        """Count one row. `source`: the columns that it was made of."""
        prompt, answer = msgspec.json.encode(row.prompt), msgspec.json.encode(row.answer)
        self._prompts.append(xxhash.xxh3_64_intdigest(prompt))
        self._pairs.append(xxhash.xxh3_64_intdigest(b"%b\n%b" % (prompt, answer)))
        for name, value in source.items():
            if value not in (None, "") and (name in self._columns or self._keeps_column(name)):
                self._columns[name] = self._columns.get(name, 0) + 1
        for name in self._mapping.used if self._mapping else ():
            value = value_of(source, name)
            if isinstance(value, str) and value.strip().lower() in NO_VALUE:
                self._texts[name] = self._texts.get(name, 0) + 1
        self._count_answer(row)
        self._count_prompt(row)

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def duplicates(self) -> int:
        """Number of rows that repeat the prompt and answer of an earlier row."""
        return len(self._pairs) - _distinct(self._pairs)

    def left_over(self) -> list[str]:
        """List columns with values that are in neither prompt nor answer."""
        used = self._mapping.used if self._mapping else self._columns
        return [name for name in self._columns if name not in used]

    def resolved(self) -> ColumnMapping | None:
        """Return the mapping without the prompt's columns that no row fills."""
        if self._mapping is None or len(self._mapping.prompts) == 1:
            return self._mapping
        there = [name for name in self._mapping.prompts if name in self._columns or "." in name]
        return self._mapping.seen(there)

    def warnings(self) -> list[str]:
        """Return a sentence for each finding."""
        rows, warnings = len(self._prompts), [*self._of_columns()]
        if self.equal_pairs:
            warnings.append(
                f"{counted(self.equal_pairs, 'row was', 'rows were')} left out: their chosen "
                "answer equals the rejected one, so there is nothing to learn"
            )
        if repeated := _distinct(self._pairs) - _distinct(self._prompts):
            warnings.append(
                f"{counted(repeated, 'row has', 'rows have')} the prompt of an earlier row, and "
                "another answer: check that the prompt has all columns that the answer depends on"
            )
        if self._mapping is None or self._mapping.answer is None:
            return warnings
        if self._empty:
            warnings.append(f"{self._empty:,} of {rows:,} rows have an empty answer")
        if not self._empty and (same := self._same.sentence("rows")):
            warnings.append(same)
        if self._shown * 2 > rows:
            warnings.append(
                f"the prompts of {self._shown:,} of {rows:,} rows end with their answers: the "
                "policy would be shown them"
            )
        if self._whole and self._whole == self._floats:
            warnings.append(
                f"{counted(self._whole, 'answer is a whole number', 'answers are whole numbers')} "
                f"written as {self._float}: as text they differ from numbers without a point "
                "(verifier exact)"
            )
        return warnings

    def _keeps_column(self, name: str) -> bool:
        """Whether the column `name` is counted. Each row may have other columns, so the number of
        counted columns is bounded."""
        used = self._mapping is not None and name in self._mapping.used
        return used or (len(self._columns) < MAX_COLUMNS and len(name) <= MAX_NAME)

    def _count_answer(self, row: Row) -> None:
        self._same.add(row.answer)
        self._empty += row.answer in (None, "", [], {}) or (
            isinstance(row.answer, str) and not row.answer.strip()
        )
        if isinstance(row.answer, float):
            self._floats += 1
            self._whole += row.answer.is_integer()
            self._float = repr(row.answer)
        elif isinstance(row.answer, str) and (number := DECIMAL.fullmatch(row.answer.strip())):
            # Cells of CSV are text.
            self._floats += 1
            self._whole += not number[1].strip("0")
            self._float = short_json(row.answer)

    def _count_prompt(self, row: Row) -> None:
        text: Any = row.prompt
        if isinstance(row.prompt, list):
            self._chats += 1
            for role in {turn["role"] for turn in row.prompt} - set(KNOWN):
                if role in self._roles or len(self._roles) < MOST_ROLES:
                    self._roles[role] = self._roles.get(role, 0) + 1
            text = row.prompt[-1].get("content")
        if not isinstance(text, str):
            return
        beginning = text[:40].lstrip()
        self._written += beginning[:2] == "[{" and any(k in beginning for k in ("role", "from"))
        if isinstance(row.answer, str | int | float) and (answer := str(row.answer).strip()):
            before, match, _ = text.rstrip().rpartition(answer)
            ends = bool(match) and text.rstrip().endswith(answer)
            self._shown += ends and bool(before) and not before[-1].isalnum()

    def _of_columns(self) -> list[str]:
        mapping = self.resolved()
        if mapping is None:
            return []
        warnings, prompts = [], mapping.prompts
        needed = [n for n in self.left_over() if n.strip().lower() in ASKED]
        if needed:
            options = " ".join(f"--prompt {name}" for name in (*prompts, *needed))
            way_out = (
                "write it into the chats" if self._chats else f"upload the file with {options}"
            )
            warnings.append(
                f"the prompt has nothing of column {names_in(needed)}: if the question needs it, "
                f"delete the dataset and {way_out}"
            )
        for name, count in self._texts.items():
            warnings.append(
                f"{counted(count, 'row has', 'rows have')} the text of a missing value, like "
                f"'None' or 'nan', in column {name!r}"
            )
        if self._written:
            warnings.append(
                f"{counted(self._written, 'prompt is', 'prompts are')} text that looks like a list "
                "of messages: the policy would read the brackets; write them as JSON, not as text"
            )
        for role, count in self._roles.items():
            warnings.append(
                f"{counted(count, 'chat has', 'chats have')} turns of {role[:60]!r}, which many "
                f"chat templates leave out; known are {', '.join(KNOWN)}"
            )
        return warnings


class SameAnswer:
    """Finds out whether all rows have the same answer, which then is probably from the wrong
    column."""

    def __init__(self) -> None:
        self._rows = self._same = 0
        self._first: Any = None

    def add(self, answer: Any) -> None:
        if not self._rows:
            self._first = answer
        self._rows += 1
        self._same += answer == self._first

    def sentence(self, rows: str) -> str:
        """Return the warning, which calls the rows `rows`. Return '' if the answers differ or are
        missing, or if fewer than FEW rows have them."""
        if self._same < self._rows or self._rows < FEW or self._first in (None, ""):
            return ""
        return f"all {rows} have the same answer, {short_json(self._first)}"


def _distinct(hashes: "array[int]") -> int:
    return len(np.unique(np.frombuffer(hashes, np.uint64)))


def same_answers(answer: Mapping[str, Any]) -> bool:
    """Whether the `chosen` and the `rejected` answer of a pair have the same words."""
    chosen, rejected = (_words(answer[which]) for which in ("chosen", "rejected"))
    return bool(chosen == rejected)


def _words(answer: Any) -> Any:
    last = answer[-1] if isinstance(answer, list) and answer else answer
    if isinstance(last, dict) and not last.get("tool_calls"):
        last = last.get("content")
    return last.strip() if isinstance(last, str) else last


def short_json(value: Any) -> str:
    """Return the beginning of a value's JSON, for a sentence that quotes the value."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:40]}…"
