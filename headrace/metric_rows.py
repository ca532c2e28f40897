"""Rows of metrics: the step that a row is of, and the names of an evaluation's metrics."""

import re
from collections.abc import Iterable
from typing import Any

K = re.compile(r"pass_at_(\d+)")


def is_step(name: str) -> bool:
    """Whether the metric says which step a row is of: `step` in a row of training."""
    return name == "step" or (name.startswith("evaluation/") and name.endswith("/step"))


def by_set(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row`. The names in a row of an evaluation get its held-out set:
    `evaluation/SET/accuracy`."""
    held_out = row.get("evaluation/name")
    if held_out is None:
        return row
    return {name.replace("evaluation/", f"evaluation/{held_out}/", 1): v for name, v in row.items()}


def place_of(row: dict[str, Any]) -> tuple[str, int]:
    """Return the identity of a row of `by_set`: its kind (step or evaluation) and its step."""
    name = next(name for name in row if is_step(name))
    return name, int(row[name])


def in_short(names: Iterable[str]) -> list[str]:
    """Return the names of metrics that fit into one line or picture. Only the powers of two and
    the largest k of pass@k stay."""
    names = list(names)
    known = {name: int(match[1]) for name in names if (match := K.search(name))}
    largest = max(known.values(), default=0)
    return [name for name in names if (k := known.get(name, 1)) == largest or not k & (k - 1)]
