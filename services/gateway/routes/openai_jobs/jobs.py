"""`fine_tuning/jobs` of OpenAI's API: a job is a run of Headrace."""

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from itertools import islice
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from services.contracts.records import RunRecord, RunState
from services.gateway.callers import Caller
from services.gateway.dependencies import CallerDep, Dependencies, Deps
from services.gateway.fine_tuning_jobs.creation import create_job, finish_job
from services.gateway.fine_tuning_jobs.history import (
    followed,
    job_checkpoints,
    metric_rows,
    newest_events,
    with_results,
)
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.files import FieldError, new_id
from services.gateway.openai_jobs.job_events import JobEvent, JobEventList
from services.gateway.openai_jobs.job_requests import (
    NewFineTuningJob,
    matches,
    metadata_filter,
    parsed_request,
)
from services.gateway.openai_jobs.job_shelf import JobShelf
from services.gateway.openai_jobs.jobs import (
    PREFIX,
    CheckpointPage,
    FineTuningJob,
    JobList,
    JobRecord,
    job_of,
    status_of,
)
from services.gateway.routes.openai_jobs.files import IdempotencyKey, in_openai_form
from services.gateway.routes.runs.events import EventStream
from services.gateway.routes.runs.runs import detailed
from services.gateway.run_pauses import pause_run, resume_run
from services.gateway.submission.run_submission import keep_record
from services.http import Problem
from services.runtime.logs import get_logger

ERRORS: dict[int | str, str] = {
    400: "A field, a row or a file cannot be used, or the job's status does not allow it; "
    "`message` says why, and `param` which",
    507: "The data volume is full",
}
NO_JOB: dict[int | str, str] = {404: "There is no such job"}
MAX_PAGE = 100

log = get_logger(__name__)
router = APIRouter(
    prefix="/openai/v1/fine_tuning/jobs", tags=["fine-tuning"], responses=openai_errors(ERRORS)
)

JobId = Annotated[str, Path(description="The job's id.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Entries of a page.")]
After = Annotated[str | None, Query(description="The last id of the page before.")]


@router.post("", operation_id="fine_tuning_jobs_create", summary="Create a job")
async def create(
    deps: Deps, caller: CallerDep, new: NewFineTuningJob, idempotency_key: IdempotencyKey = None
) -> FineTuningJob:
    """Check the files, copy their rows into datasets, and queue a run. Whatever cannot be honoured
    is refused, and nothing is kept then."""
    id = new_id(PREFIX, caller.digest, idempotency_key)
    with in_openai_form():
        request = parsed_request(new.given())
        record = await create_job(deps, caller, id, request)
    log.info("fine-tuning job created", job=record.id, run=record.run)
    return await _shown(deps, record, await _run_of(deps, record))


@router.get("", operation_id="fine_tuning_jobs_list", summary="List jobs")
async def list_all(
    deps: Deps,
    caller: CallerDep,
    request: Request,
    after: After = None,
    limit: PageLimit = 20,
    metadata: Annotated[str | None, Query(description="`null`: only jobs without any.")] = None,
    metadata_key: Annotated[
        str | None, Query(alias="metadata[KEY]", description="Only jobs with this value of KEY.")
    ] = None,
) -> JobList:
    """The jobs, the newest first. A job whose run was deleted is gone."""
    with in_openai_form():
        wanted = metadata_filter(request.query_params.multi_items(), {"after", "limit"})
        records = await anyio.to_thread.run_sync(JobShelf(deps.settings.data).all)
        records = [
            each
            for each in records
            if caller.sees(each.project) and matches(each.request.metadata, wanted)
        ]
        if after is not None:
            records = records[_place_of(after, [each.id for each in records]) :]
    jobs: list[FineTuningJob] = []
    for record in records:
        run = await _run_of(deps, record)
        if not _is_there(record, run):
            continue
        if len(jobs) == limit:
            return JobList(data=jobs, has_more=True)
        jobs.append(await _shown(deps, record, run))
    return JobList(data=jobs, has_more=False)


@router.get(
    "/{job}",
    operation_id="fine_tuning_jobs_get",
    summary="Show a job",
    responses=openai_errors(NO_JOB),
)
async def show(deps: Deps, caller: CallerDep, job: JobId) -> FineTuningJob:
    """A job's status, model and results."""
    return await _shown(deps, *await _seen_job(deps, caller, job))


@router.post(
    "/{job}/cancel",
    operation_id="fine_tuning_jobs_cancel",
    summary="Cancel a job",
    responses=openai_errors(NO_JOB),
)
async def cancel(deps: Deps, caller: CallerDep, job: JobId) -> FineTuningJob:
    """End a job after its present step. Its checkpoints stay. Cancelling twice is fine."""
    record, run = await _begun(deps, caller, job)
    if run is None or run.state in (RunState.SUCCEEDED, RunState.FAILED):
        raise _wrong_status(f"job {record.id} has {status_of(record, run)} already")
    if run.state is not RunState.CANCELLED:
        await deps.store.runs.cancel(run.id)
        log.info("fine-tuning job cancelled", job=record.id, run=run.id)
    return await _shown(deps, record, await _run_of(deps, record))


@router.post(
    "/{job}/pause",
    operation_id="fine_tuning_jobs_pause",
    summary="Pause a job",
    responses=openai_errors(NO_JOB),
)
async def pause(deps: Deps, caller: CallerDep, job: JobId) -> FineTuningJob:
    """Let a job that runs stand still after its present step. It keeps its place and its GPUs."""
    return await _changed(deps, caller, job, lambda run: pause_run(deps, run, caller.name))


@router.post(
    "/{job}/resume",
    operation_id="fine_tuning_jobs_resume",
    summary="Resume a job",
    responses=openai_errors(NO_JOB),
)
async def resume(deps: Deps, caller: CallerDep, job: JobId) -> FineTuningJob:
    """Let a paused job go on."""
    return await _changed(deps, caller, job, lambda run: resume_run(deps, run, caller.name))


@router.get(
    "/{job}/events",
    operation_id="fine_tuning_events_list",
    summary="List a job's events",
    response_model=JobEventList,
    responses={
        **openai_errors(NO_JOB),
        200: {
            "model": JobEventList,
            "description": "With `stream`: server-sent events, each a JobEvent, the oldest first, "
            "and `[DONE]` when the job is over",
        },
    },
)
async def events(
    deps: Deps,
    caller: CallerDep,
    job: JobId,
    after: After = None,
    limit: PageLimit = 20,
    stream: Annotated[bool, Query(description="Send events as they happen.")] = False,
) -> Response | JobEventList:
    """The job's events, the newest first: steps with their metrics, checkpoints, warnings."""
    record, run = await _seen_job(deps, caller, job)
    if stream:
        return EventStream(_encoded(followed(deps, record, run)))
    with in_openai_form():
        page = await newest_events(deps, record, run, after, limit + 1)
    return JobEventList(data=page[:limit], has_more=len(page) > limit)


@router.get(
    "/{job}/checkpoints",
    operation_id="fine_tuning_checkpoints_list",
    summary="List a job's checkpoints",
    response_model_exclude_none=True,
    responses=openai_errors(NO_JOB),
)
async def checkpoints(
    deps: Deps, caller: CallerDep, job: JobId, after: After = None, limit: PageLimit = 10
) -> CheckpointPage:
    """The checkpoints that are kept, the newest first. Each is a model."""
    record, run = await _seen_job(deps, caller, job)
    kept = await job_checkpoints(deps, record) if run is not None else []
    with in_openai_form():
        if after is not None:
            kept = kept[_place_of(after, [each.id for each in kept]) :]
    page = list(islice(kept, limit))
    return CheckpointPage(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(kept) > limit,
    )


def _place_of(id: str, ids: list[str]) -> int:
    """Return the place after an id. Raises FieldError if it is not there."""
    try:
        return ids.index(id) + 1
    except ValueError:
        raise FieldError("after", f"there is no {id[:80]!r}") from None


def _wrong_status(message: str) -> SessionProblem:
    return SessionProblem(HTTPStatus.BAD_REQUEST, message, code="invalid_status")


async def _run_of(deps: Dependencies, record: JobRecord) -> RunRecord | None:
    return await deps.store.runs.get(record.run) if record.error is None else None


def _is_there(record: JobRecord, run: RunRecord | None) -> bool:
    """Return whether a job is shown: its run is there, or is still to be made, or cannot be."""
    return run is not None or record.error is not None or record.is_new


async def _seen_job(
    deps: Dependencies, caller: Caller, id: str
) -> tuple[JobRecord, RunRecord | None]:
    """Return a job that the caller sees, and its run. Raises SessionProblem (404)."""
    record = await anyio.to_thread.run_sync(JobShelf(deps.settings.data).get, id)
    if record is not None and caller.sees(record.project):
        run = await _run_of(deps, record)
        if _is_there(record, run):
            return record, run
    raise SessionProblem(
        HTTPStatus.NOT_FOUND, f"there is no fine-tuning job {id[:80]!r}", "fine_tuning_job_id"
    )


async def _begun(deps: Dependencies, caller: Caller, id: str) -> tuple[JobRecord, RunRecord | None]:
    """Return a job and its run. A new job gets its run first."""
    record, run = await _seen_job(deps, caller, id)
    if run is None and record.error is None:
        with in_openai_form():
            record = await finish_job(deps, record.id)
        run = await _run_of(deps, record)
    return record, run


async def _changed(
    deps: Dependencies,
    caller: Caller,
    id: str,
    change: Callable[[RunRecord], Awaitable[RunRecord]],
) -> FineTuningJob:
    """Pause or resume a job. Raises SessionProblem (400) for what its status does not allow."""
    record, run = await _begun(deps, caller, id)
    if run is None:
        raise _wrong_status(f"job {record.id} is {status_of(record, run)}")
    try:
        after = await change(run)
    except Problem as problem:
        if problem.status != HTTPStatus.CONFLICT:
            raise
        raise _wrong_status(problem.detail) from None
    await keep_record(deps, after.id)
    return await _shown(deps, record, after)


async def _shown(deps: Dependencies, record: JobRecord, run: RunRecord | None) -> FineTuningJob:
    """Return a job as clients see it. The results of one that has succeeded become a file."""
    if run is None:
        return job_of(record, None)
    if not run.state.final:
        return job_of(record, (await detailed(deps, [run]))[0])
    rows = await metric_rows(deps, run)
    job = job_of(record, run, rows)
    if job.result_files:
        await with_results(deps, record, rows)
    return job


async def _encoded(events: AsyncIterator[list[JobEvent]]) -> AsyncIterator[bytes]:
    async for batch in events:
        yield (
            b"".join(f"data: {event.model_dump_json()}\n\n".encode() for event in batch)
            or b": ping\n\n"
        )
    yield b"data: [DONE]\n\n"
