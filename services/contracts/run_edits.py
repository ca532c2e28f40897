"""Edits of a run that waits or trains: what was changed, by whom, and from which step it holds.

An edit has no step until the learner takes it, at the next step that is not planned yet. From then
on the step never changes. So a step that is trained again after a crash has the values that it had
before. All functions here are pure.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, Field

EditedKey = Literal["max_steps", "max_staleness", "evaluation_every", "checkpoint_every", "lr"]
CONFIG_KEYS: dict[EditedKey, str] = {
    "max_steps": "training.max_steps",
    "max_staleness": "rollout.max_staleness",
    "evaluation_every": "evaluation.every",
    "checkpoint_every": "training.checkpoint_every",
    "lr": "optimizer.lr",
}
"""Where the config of a run that samples has what an edit may change."""
SFT_KEYS: dict[EditedKey, str] = {
    "max_steps": "training.max_steps",
    "evaluation_every": "validation.every",
    "checkpoint_every": "training.checkpoint_every",
    "lr": "optimizer.lr",
}
"""Where the config of a supervised run has it."""


def config_keys(kind: str) -> Mapping[str, str]:
    """Return where the config of a run of this kind has what an edit may change."""
    keys = SFT_KEYS if kind == "sft" else CONFIG_KEYS
    return {str(key): place for key, place in keys.items()}


class RunEdit(BaseModel):
    """One changed value of a run's config."""

    key: EditedKey = Field(description="As `PATCH /v1/runs/RUN` takes it.")
    before: float | None = Field(description="The value before; null: there was none.")
    after: float = Field(description="The value after.")
    by: str = Field(description="Name of the key that asked for it.")
    time: float = Field(description="When, in Unix seconds.")
    step: int | None = Field(
        None, description="The first step that has it. Null: the learner has not taken it yet."
    )


def taken(edits: Sequence[RunEdit], step: int) -> list[RunEdit]:
    """Return the edits after the learner has taken them for `step`."""
    return [
        edit if edit.step is not None else edit.model_copy(update={"step": step}) for edit in edits
    ]


def newest_edit(edits: Sequence[RunEdit], key: EditedKey) -> float | None:
    """Return the newest value that an edit gives to `key`, or None."""
    return next((edit.after for edit in reversed(edits) if edit.key == key), None)


def value_for(edits: Sequence[RunEdit], key: EditedKey, step: int) -> float | None:
    """Return the value that edits give to `key` for a step. Return None if the config says it."""
    of_key = [edit for edit in edits if edit.key == key]
    held = [edit.after for edit in of_key if edit.step is not None and edit.step <= step]
    if held:
        return held[-1]
    # The config has the newest value.
    return of_key[0].before if of_key else None
