"""Edits a run on request: checks what its state allows, and writes what changes."""

import time
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from headrace.config_keys import CONFIG_KEYS, edited_keys, value_at, with_value
from headrace.wording import predicate
from services.contracts.config import ConfigError, RLConfig, parse_config
from services.contracts.records import Notes, RunRecord, RunState, Tags
from services.contracts.run_edits import RunEdit
from services.gateway.dependencies import Dependencies
from services.http import Problem

MOST_EDITS = 500
LABELS = ("name", "tags", "notes")
"""Fields that may change in any state."""
OPEN = [state for state in RunState if not state.ending]


class RunPatch(BaseModel):
    """The body of `PATCH /v1/runs/{run}`: only what changes."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"tags": ["baseline"], "max_steps": 300}}
    )

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people. In any state."
    )
    tags: Tags | None = Field(None, description="All its tags from now on. In any state.")
    notes: Notes | None = Field(None, description="In any state.")
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = Field(
        None, description="Its place in its pool's queue. While it is queued."
    )
    max_steps: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None,
        description="`training.max_steps`, more than it has trained. Also moves the end of its "
        "learning rate's schedule. It replaces `training.epochs`.",
    )
    max_staleness: Annotated[int, Field(ge=0, le=10**6)] | None = Field(
        None, description="`rollout.max_staleness`. Supervised runs have none."
    )
    evaluation_every: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="`evaluation.every`; of a supervised run `validation.every`."
    )
    checkpoint_every: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="`training.checkpoint_every`."
    )
    lr: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = Field(
        None, description="`optimizer.lr`, the peak of its schedule."
    )


async def edit_run(deps: Dependencies, run: RunRecord, patch: RunPatch, by: str) -> RunRecord:
    """Change a run, and return its record. Raises Problem 409 for what its state does not allow,
    422 for a value that its config cannot have."""
    given = patch.model_dump(exclude_none=True)
    if not given:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"nothing is to be changed: send one of {', '.join(RunPatch.model_fields)}",
        )
    if "tags" in given:
        given["tags"] = list(dict.fromkeys(given["tags"]))
    while True:
        fields, event = _changes(run, given, by)
        refused = ""
        if event:
            states = _states(run, given)
            refused = await deps.store.run_edits.add(run.id, run.edits, fields, states, event)
        if not refused and "priority" in given:
            # Also if the record has it already: its gateway may have died before this call.
            await deps.store.run_edits.move(run.id, run.pool, run.created, given["priority"])
        if not event:
            return run
        after = await deps.store.runs.get(run.id)
        if after is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"run {run.name!r} was deleted meanwhile")
        if not refused:
            return after
        run = after


def _states(run: RunRecord, given: dict[str, Any]) -> list[RunState]:
    """Return the states in which the changes of `given` to `run` hold."""
    if not any(key in CONFIG_KEYS or key == "priority" for key in given):
        return list(RunState)
    # A queued run has the new values at once, and a run with steps once its learner takes them.
    if run.state is RunState.QUEUED:
        return [RunState.QUEUED]
    return [state for state in OPEN if state is not RunState.QUEUED]


def _changes(
    run: RunRecord, given: dict[str, Any], by: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields to write, and the data of the event (empty if nothing changes)."""
    if problems := [problem for key in given if (problem := _refused(run, key, given[key]))]:
        listed = "; ".join(f"{key}: {why}" for key, why in problems)
        raise Problem(HTTPStatus.CONFLICT, f"run {run.name} ({run.id}) stays as it is: {listed}",
                      problems)  # fmt: skip
    fields = {key: given[key] for key in (*LABELS, "priority")
              if key in given and given[key] != getattr(run, key)}  # fmt: skip
    changed = {key: {"from": getattr(run, key), "to": value} for key, value in fields.items()}
    config, edits = run.config, list[RunEdit]()
    for key, place in edited_keys(run.kind).items():
        before = value_at(run.config, place)
        if key == "max_steps":
            before = run.max_steps if before is None else before
        if key not in given or given[key] == before:
            continue
        config = with_value(config, place, given[key])
        if key == "max_steps":
            config = with_value(config, "training.epochs", None)
        edits.append(RunEdit(key=key, before=before, after=given[key], by=by, time=time.time()))
        changed[key] = {"from": before, "to": given[key]}
    if edits:
        try:
            parse_config(config)
        except ConfigError as error:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"run {run.name} ({run.id}) stays as it is: its config cannot have that",
                error.problems,
            ) from None
        every = [edit.model_dump(mode="json") for edit in (*run.edits, *edits)]
        fields |= {"config": config, "edits": every}
        if run.state is RunState.QUEUED:
            # No step has the values of before.
            direct = ("max_steps", "max_staleness")
            fields |= {edit.key: int(edit.after) for edit in edits if edit.key in direct}
    return fields, {"by": by, "changes": changed} if changed else {}


def _refused(run: RunRecord, key: str, value: Any) -> tuple[str, str] | None:
    """Return why a key of a run cannot be changed, or None."""
    why = ""
    if run.damage:
        why = "its record cannot be read"
    elif key in LABELS:
        return None
    elif key == "priority":
        if run.state is not RunState.QUEUED:
            why = f"it orders the queue, and the run {predicate(run.state)}"
    elif run.state.ending:
        place = edited_keys(run.kind).get(key)
        why = f"the run {predicate(run.state)}: only name, tags and notes can be changed"
        if place:
            why += f". `headrace resume {run.id} --set {place}={value}` continues it with another"
    else:
        why = _unfit(run, key, value)
    return (key, why) if why else None


def _unfit(run: RunRecord, key: str, value: Any) -> str:
    """Return why a key of an unfinished run's config cannot get a value; empty if it can."""
    if key not in edited_keys(run.kind):
        return "a supervised run has none"
    config = parse_config(run.config)
    if run.max_steps == 0:
        return "the run evaluates a model, and trains nothing"
    if len(run.edits) >= MOST_EDITS:
        return f"the run was changed {MOST_EDITS} times: cancel and resume it for further changes"
    if key == "max_steps" and value <= run.step:
        return f"{value} is not more than the {run.step} steps that it has trained"
    if key == "max_steps" and run.max_steps is None and run.state is not RunState.QUEUED:
        return "the steps of its epochs are not counted yet: try again once it trains"
    if key == "evaluation_every" and isinstance(config, RLConfig) and config.evaluation is None:
        return "the run has no evaluation"
    if key == "lr" and config.optimizer.type == "muon":
        return "muon has a learning rate for each kind of weight: resume the run with others"
    return ""
