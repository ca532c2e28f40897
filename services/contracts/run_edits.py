"""Edits of a run that waits or trains: what was changed, by whom, and from which step it holds.

An edit has no step until the learner takes it, at the next step that is not planned yet. From then
on the step never changes. So a step that is trained again after a crash has the values that it had
before. All functions here are pure.
"""

from collections.abc import Sequence

from pydantic import BaseModel, Field

from headrace.config_keys import EditedKey


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
