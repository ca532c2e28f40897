"""Queues the run of a submission, once for each request."""

from contextlib import nullcontext
from http import HTTPStatus

from services.contracts.records import RunRecord, RunState
from services.gateway.callers import Caller
from services.gateway.dependencies import Dependencies
from services.gateway.idempotency import RequestTry
from services.gateway.submission.fitting import refusals
from services.gateway.submission.forked_checkpoint import pinned
from services.gateway.submission.run_submission import (
    RunSubmission,
    accept,
    keep_record,
    refusal,
)
from services.http import Problem
from services.models.path import needed_runs
from services.runtime.logs import get_logger
from services.store import Gone

log = get_logger(__name__)


async def queue(
    deps: Dependencies,
    submission: RunSubmission,
    caller: Caller,
    request_try: RequestTry,
    is_fork: bool = False,
) -> RunRecord:
    """Check a submission and queue it. The checkpoint of a fork is pinned before. Raises Problem as
    `accept`."""
    # A try that broke off may have written the run, and not queued it.
    if request_try.is_repeated and (written := await deps.store.runs.get(request_try.id)):
        if written.state is RunState.QUEUED:
            await deps.store.runs.queue_again(written)
        return await _submitted(deps, written)
    accepted = await accept(deps, submission, is_fork=is_fork)
    # Whoever continues a project's run leaves it in its project.
    project = caller.project or accepted.record.project
    made_by = {"submitter": caller.name, "project": project}
    record = accepted.record.model_copy(update={**made_by, "id": request_try.id})
    if too_large := refusals(accepted.estimate):
        raise refusal(too_large)
    try:
        async with pinned(deps.volume, record) if is_fork else nullcontext():
            await deps.store.runs.submit(record, needed_runs(record))
    except Gone as error:
        raise Problem(HTTPStatus.CONFLICT, f"the run was not queued: {error}") from None
    queued = await _submitted(deps, record)
    deps.references.tell(record.id, accepted.unfinished)
    log.info("run queued", run=record.id, name=record.name, kind=record.kind, pool=record.pool)
    return queued


async def _submitted(deps: Dependencies, record: RunRecord) -> RunRecord:
    """Keep a copy of a queued run, note its trackers, and return the run as the store has it."""
    await keep_record(deps, record.id)
    await deps.tracking.begin(record)
    # The store has added the checkpoint and the step of a run that is resumed.
    return (await deps.details.of([await deps.store.runs.get(record.id) or record]))[0]
