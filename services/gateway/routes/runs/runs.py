"""`/v1/runs`: submit, list, show, cancel, delete."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from services.contracts.records import RunRecord, RunState, RunSummary
from services.gateway.dependencies import (
    RUN_PROBLEMS,
    CallerDep,
    Dependencies,
    Deps,
    RequestTryDep,
    RunDep,
)
from services.gateway.paging import Cursor, Limit, Next, cursor_at, place_in, unknown_cursor
from services.gateway.run_deletion import delete_run
from services.gateway.run_edits import RunPatch, edit_run
from services.gateway.run_index import Test
from services.gateway.submission.fitting import DryRun
from services.gateway.submission.run_queueing import queue
from services.gateway.submission.run_submission import (
    RunSubmission,
    accept,
    described_run,
    keep_record,
)
from services.http import UNCHANGED, Problem, responses, unless_unchanged
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/runs", tags=["runs"])

R = TypeVar("R", bound=RunSummary)
RELEASE_SECONDS = 10.0
"""Time for a learner to release a cancelled run. A learner looks between its passes."""
POLL_SECONDS = 0.2

log = get_logger(__name__)


class RunFilter(BaseModel):
    """The runs that a list has: those that every given parameter names."""

    q: str = Field(
        "",
        max_length=1000,
        description="Only runs with each of these words somewhere in their name, id, tags, notes, "
        "model, recipe or datasets. Upper and lower case are alike.",
        examples=["gsm8k lr"],
    )
    state: list[RunState] | None = Field(None, description="Only these states.")
    pool: str | None = Field(None, description="Only this pool's.")
    name: str | None = Field(None, description="Only those of this name.")
    tag: list[str] | None = Field(None, description="Only runs with all of these tags.")
    recipe: str | None = Field(None, description="Only runs that began with this recipe.")
    model: str | None = Field(
        None,
        description="Only runs of this model: `model.path` of their configs, or its last part.",
        examples=["Qwen3-0.6B"],
    )
    dataset: str | None = Field(None, description="Only runs that use a dataset of this name.")
    limit: Limit = 50
    cursor: Cursor = None

    def tests(self) -> list[Test]:
        """Return the tests that a run of the list passes, one for each given parameter. They are
        called for all runs."""
        states, tags = set(self.state or ()), set(self.tag or ())
        tests: list[Test] = [
            lambda run, word=word: word in run.text  # type: ignore[misc]
            for word in self.q.casefold().split()
        ]
        if states:
            tests.append(lambda run: run.summary.state in states)
        if tags:
            tests.append(lambda run: tags.issubset(run.summary.tags))
        if (pool := self.pool) is not None:
            tests.append(lambda run: run.summary.pool == pool)
        if (name := self.name) is not None:
            tests.append(lambda run: run.summary.name == name)
        if (recipe := self.recipe) is not None:
            tests.append(lambda run: run.summary.recipe == recipe)
        if (model := self.model) is not None:
            tests.append(lambda run: model in _names_of(run.summary.model))
        if (dataset := self.dataset) is not None:
            tests.append(lambda run: dataset in run.summary.datasets)
        return tests


def _names_of(model: str) -> tuple[str, str]:
    """Return the names by which a list finds a model: its path, and the path's last part."""
    return model, model.rpartition("/")[2]


class RunList(BaseModel):
    """A page of runs, newest first."""

    runs: list[RunSummary] = Field(description="Without their configs; `GET /v1/runs/RUN` has one.")
    next: Next


class CancelledRun(RunRecord):
    """A run after the request to cancel it."""

    is_released: bool = Field(
        description="Whether no learner works on it any more. Until then its learner may still "
        "train a step, and write a checkpoint."
    )


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="runs_create",
    summary="Submit a run",
    responses=responses(
        {
            404: "There is no such recipe, or no such run to resume",
            409: "The run to resume is not over, or is being deleted",
            422: "The config cannot be used, or the run does not fit the pool's GPUs; `problems` "
            "lists everything that is wrong with it",
        }
    )
    | {200: {"model": DryRun, "description": "With `dry_run`: nothing is queued"}},
)
async def submit(
    deps: Deps,
    submission: RunSubmission,
    answer: Response,
    caller: CallerDep,
    request_try: RequestTryDep,
    dry_run: Annotated[
        bool, Query(description="Queue nothing: say what the run would be, and what it needs.")
    ] = False,
) -> RunRecord | DryRun:
    """Check a run's config and queue it. A refusal (422) lists every problem with its key path; one
    may be that the run cannot fit on the GPUs of its pool. With `dry_run` nothing is queued, and
    the answer (200) is the whole config and what the run needs: memory of each GPU, disk and time,
    and what to change if it does not fit."""
    if dry_run:
        answer.status_code = HTTPStatus.OK
        return described_run(await accept(deps, submission))
    return await queue(deps, submission, caller, request_try)


@router.get(
    "",
    operation_id="runs_list",
    summary="List runs",
    response_model=RunList,
    responses=UNCHANGED,
)
async def list_all(deps: Deps, request: Request, wanted: Annotated[RunFilter, Query()]) -> Response:
    """Runs without their configs, newest first, page by page. The answer has an `ETag`: asked again
    with `If-None-Match`, an unchanged page is a 304 without a body."""
    runs, following = await page_of_runs(deps, wanted.limit, wanted.cursor, wanted.tests())
    return unless_unchanged(request, RunList(runs=await detailed(deps, runs), next=following))


async def page_of_runs(
    deps: Dependencies, limit: int, cursor: str | None, tests: Sequence[Test]
) -> tuple[list[RunSummary], str | None]:
    """Return a page of the runs that pass all `tests`, newest first, and the cursor of the
    next page. Raises Problem 422 for a cursor of another list."""
    before = None
    if cursor is not None:
        match place_in(cursor):
            case (float(created), str(id)):
                before = created, id
            case _:
                raise unknown_cursor(cursor)
    runs, following = await deps.index.page(limit, before, tests)
    return runs, following and cursor_at(following)


async def detailed(deps: Dependencies, runs: list[R]) -> list[R]:
    """Return the runs with what their records do not say (`services/gateway/run_details.py`)."""
    return await deps.details.of(runs)


@router.get(
    "/{run}",
    operation_id="runs_get",
    summary="Show a run",
    response_model=RunRecord,
    responses={**responses(RUN_PROBLEMS), **UNCHANGED},
)
async def show(deps: Deps, request: Request, record: RunDep) -> Response:
    """Show one run: its state, the reason for it, its config and its progress."""
    return unless_unchanged(request, (await detailed(deps, [record]))[0])


@router.patch(
    "/{run}",
    operation_id="runs_update",
    summary="Change a run",
    responses=responses(
        RUN_PROBLEMS
        | {
            409: "Its state does not allow that; `problems` says why, by key. Or several runs have "
            "this name",
            422: "A value that its config cannot have",
        }
    ),
)
async def update(deps: Deps, record: RunDep, patch: RunPatch, caller: CallerDep) -> RunRecord:
    """Change a run's name, tags, notes, or place in the queue; and of a run that waits or trains
    some values of its config. The learner takes these at the next step that it plans. `edits` says
    from which step each holds, and a step that is trained again after a crash has the values that
    it had. A request changes all its values, or none. Each change is an event."""
    after = await edit_run(deps, record, patch, caller.name)
    await keep_record(deps, after.id)
    return (await detailed(deps, [after]))[0]


@router.post(
    "/{run}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    operation_id="runs_cancel",
    summary="Cancel a run",
    responses=responses(RUN_PROBLEMS | {409: "It has succeeded or failed already"}),
)
async def cancel(
    deps: Deps,
    record: RunDep,
    now: Annotated[
        bool,
        Query(
            description="End it at once. Steps since its newest checkpoint may be lost, and groups "
            "in flight are dropped: a run that resumes it trains and samples them again. The "
            "answer waits up to 10 s for its learner, which may still save its present step."
        ),
    ] = False,
) -> CancelledRun:
    """Ask a run to end. A queued run ends at once; a run that trains is `cancelling` until it has
    written a checkpoint. Cancelling twice is fine; a run that has succeeded or failed cannot be
    cancelled (409)."""
    if record.state in (RunState.SUCCEEDED, RunState.FAILED):
        raise Problem(
            HTTPStatus.CONFLICT, f"run {record.name} ({record.id}) is over: it {record.state}"
        )
    if record.state is not RunState.CANCELLED:
        await deps.store.runs.cancel(record.id, now=now)
        log.info("run cancelled", run=record.id, name=record.name, now=now)
    is_released = await _is_released(deps, record, RELEASE_SECONDS if now else 0.0)
    after = await deps.store.runs.get(record.id) or record
    return CancelledRun(**after.model_dump(), is_released=is_released)


async def _is_released(deps: Dependencies, run: RunSummary, seconds: float) -> bool:
    """Wait up to `seconds` until no learner works on a run. Return whether none does."""
    deadline = time.monotonic() + seconds
    while not await deps.store.runs.free(run):
        if await deps.store.pools.lock_seconds(run.pool) <= 0:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


@router.delete(
    "/{run}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="runs_delete",
    summary="Delete a run",
    responses=responses(
        RUN_PROBLEMS | {409: "It is not over, another run needs it, or several have the name"}
    ),
)
async def delete(deps: Deps, record: RunDep) -> None:
    """Delete a run that is over: its record, metrics, answers, checkpoints, weights, and its
    ledger. Its dataset stays. Refused (409) while another run continues it, or while an unfinished
    run starts from its model. A finished run that started from its model stays readable. It stays
    resumable if it has a checkpoint and no reference (KL or DPO without adapters)."""
    await delete_run(deps, record)
    log.info("run deleted", run=record.id, name=record.name)
