"""Pauses a run on request, and lets it go on: checks what its state allows, and writes who asked.
The learner heeds that between two steps."""

from http import HTTPStatus
from typing import Any

from headrace.wording import on_request, predicate
from services.contracts.events import EventKind
from services.contracts.records import RunRecord, RunState
from services.gateway.dependencies import Dependencies
from services.http import Problem

RESUMED = "it was resumed, and goes on once its learner looks"


async def pause_run(deps: Dependencies, run: RunRecord, by: str) -> RunRecord:
    """Ask a run's learner to pause, and return the run's record. Raises Problem 409 for what its
    state does not allow."""
    return await _change(deps, run, by, pauses=True)


async def resume_run(deps: Dependencies, run: RunRecord, by: str) -> RunRecord:
    """Let a paused run go on, and return its record. Raises Problem 409 for a run that does not go
    on by that."""
    return await _change(deps, run, by, pauses=False)


async def _change(deps: Dependencies, run: RunRecord, by: str, *, pauses: bool) -> RunRecord:
    while True:
        if why := _refused(run, pauses=pauses):
            raise Problem(HTTPStatus.CONFLICT, f"run {run.name} ({run.id}) {why}")
        if bool(run.paused_by) == pauses:
            return run
        fields: dict[str, Any] = {"paused_by": by if pauses else ""}
        # Another reason, such as a full disk, stays true.
        if not pauses and run.reason == on_request(run.paused_by):
            fields["reason"] = RESUMED
        elif pauses and run.reason == RESUMED:
            fields["reason"] = on_request(by)
        kind: EventKind = "paused" if pauses else "resumed"
        refused = await deps.store.run_edits.add(
            run.id, run.edits, fields, [run.state], {"by": by}, kind
        )
        after = await deps.store.runs.get(run.id)
        if after is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"run {run.name!r} was deleted meanwhile")
        if not refused:
            return after
        run = after


def _refused(run: RunRecord, *, pauses: bool) -> str:
    """Return why a run can be neither paused nor resumed; empty if it can."""
    if run.damage:
        return "stays as it is: its record cannot be read"
    if run.state.ending:
        again = "" if pauses else f": `headrace resume {run.id}` continues it as a new run"
        return f"{predicate(run.state)}{again if run.state.final else ''}"
    if pauses and run.state is RunState.QUEUED:
        return (
            f"{predicate(run.state)}, and has not begun: cancel it, or let other runs go first "
            f"(`headrace set {run.id} priority=-1`)"
        )
    if not pauses and run.state is RunState.PAUSED and not run.paused_by and run.reason != RESUMED:
        return f"goes on by itself once it can. It is paused because: {run.reason}"
    return ""
