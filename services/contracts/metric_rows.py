"""Rows of metrics: the step that a row is of, and the names of an evaluation's metrics."""

from typing import Any


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
