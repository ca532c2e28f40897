"""`/v1/runs`: submit, list, show, cancel, delete, metrics."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.records import RunRecord, RunState
from services.gateway.access import RUN_PROBLEMS, AccessDep, OnlyRunDep, RunDep
from services.gateway.deletion import delete_run
from services.gateway.submission import RunSubmission, accept
from services.http import Problem, responses
from services.logs import get_logger
from services.model_path import starts_from
from services.store import Gone

router = APIRouter(prefix="/v1/runs", tags=["runs"])

log = get_logger(__name__)


class RunList(BaseModel):
    """Runs, newest first."""

    runs: list[RunRecord] = Field(description="All that were asked for.")


class RunMetrics(BaseModel):
    """Metrics of a run by step."""

    run: str = Field(description="The run's id.")
    metrics: list[dict[str, Any]] = Field(
        description="One object a step, by the names of docs/metrics.md."
    )


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    summary="Submit a run",
    responses=responses(
        {
            404: "There is no such recipe, or no such run to resume",
            409: "The run to resume is not over, or has no checkpoint, or is being deleted",
            422: "The config cannot be used; `problems` lists everything that is wrong with it",
        }
    ),
)
async def submit(given: AccessDep, submission: RunSubmission) -> RunRecord:
    """Check a run's config and queue it. A refusal (422) lists every problem with its key path."""
    record = await accept(given, submission)
    try:
        await given.store.runs.submit(record, starts_from(record.config))
    except Gone as error:
        raise Problem(HTTPStatus.CONFLICT, f"the run was not queued: {error}") from None
    log.info("run queued", run=record.id, name=record.name, kind=record.kind, pool=record.pool)
    return record


@router.get("", summary="List runs")
async def list_all(
    given: AccessDep,
    state: Annotated[list[RunState] | None, Query(description="Only these states.")] = None,
    pool: Annotated[str | None, Query(description="Only this pool's.")] = None,
) -> RunList:
    """All runs, newest first."""
    runs = [
        run
        for run in await given.store.runs.list()
        if (not state or run.state in state) and pool in (None, run.pool)
    ]
    return RunList(runs=sorted(runs, key=lambda run: run.created, reverse=True))


@router.get("/{run}", summary="Show a run", responses=responses(RUN_PROBLEMS))
async def show(record: RunDep) -> RunRecord:
    """One run: its state, the reason for it, its config, where it stands."""
    return record


@router.post(
    "/{run}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    summary="Cancel a run",
    responses=responses(RUN_PROBLEMS | {409: "It has succeeded or failed already"}),
)
async def cancel(given: AccessDep, record: RunDep) -> RunRecord:
    """Ask a run to end. A queued one ends at once, a running one writes a checkpoint first.
    Cancelling twice is fine; a run that has succeeded or failed cannot be cancelled (409)."""
    if record.state in (RunState.SUCCEEDED, RunState.FAILED):
        raise Problem(
            HTTPStatus.CONFLICT, f"run {record.name} ({record.id}) is over: it {record.state}"
        )
    if record.state is RunState.CANCELLED:
        return record
    await given.store.runs.cancel(record.id)
    log.info("run cancelled", run=record.id, name=record.name)
    return await given.store.runs.get(record.id) or record


@router.delete(
    "/{run}",
    status_code=HTTPStatus.NO_CONTENT,
    summary="Delete a run",
    responses=responses(
        RUN_PROBLEMS | {409: "It is not over, another run needs it, or several have the name"}
    ),
)
async def delete(given: AccessDep, record: OnlyRunDep) -> None:
    """Delete a run that is over: its record, metrics, answers, checkpoints, weights, and its
    ledger. Refused (409) while another run continues it, or one that is not over starts from what
    it made; one that is over and started from it can be read, but not resumed, without it. Its
    dataset stays."""
    await delete_run(given, record)
    log.info("run deleted", run=record.id, name=record.name)


@router.get("/{run}/metrics", summary="Metrics of a run", responses=responses(RUN_PROBLEMS))
async def metrics(
    given: AccessDep,
    record: RunDep,
    after: Annotated[int, Query(description="Only steps after this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=100_000, description="At most so many.")] = 10_000,
) -> RunMetrics:
    """What the learner measured at each step, oldest first."""
    path = given.volume.path(f"runs/{record.id}/metrics.jsonl")
    rows = await anyio.to_thread.run_sync(_read_metrics, path, after, limit)
    return RunMetrics(run=record.id, metrics=rows)


def _read_metrics(path: Path, after: int, limit: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            for line in file:
                # The line that is being written has no end yet.
                if not line.endswith(b"\n"):
                    break
                row = json.loads(line, parse_constant=lambda _: None)
                # An evaluation has a line of its own.
                if row.get("step", row.get("evaluation/step", 0)) > after:
                    rows.append(row)
                    if len(rows) == limit:
                        break
    except FileNotFoundError:
        return []
    return rows
