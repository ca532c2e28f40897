"""`/v1/runs/{run}/pause` and `/resume`: a run stands still between two steps, and goes on."""

from http import HTTPStatus

from fastapi import APIRouter

from services.contracts.records import RunRecord
from services.gateway.dependencies import RUN_PROBLEMS, CallerDep, Dependencies, Deps, RunDep
from services.gateway.routes.runs.runs import detailed
from services.gateway.run_pauses import pause_run, resume_run
from services.gateway.submission.run_submission import keep_record
from services.http import responses
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/runs", tags=["runs"])
log = get_logger(__name__)


@router.post(
    "/{run}/pause",
    status_code=HTTPStatus.ACCEPTED,
    operation_id="runs_pause",
    summary="Pause a run",
    responses=responses(RUN_PROBLEMS | {409: "It is queued, ends, or is over"}),
)
async def pause(deps: Deps, record: RunDep, caller: CallerDep) -> RunRecord:
    """Let a run stand still until it is resumed. Workers begin no new group from now on, and
    finish the groups in flight. Its learner waits after its present step, and the run is `paused`
    then. It keeps its place: its learner and workers take no other run of the pool. Its model stays
    in memory and can be chatted with. The run stays paused when a process dies and starts again.
    Its config can be changed meanwhile, and it can be cancelled. Pausing twice is fine."""
    after = await pause_run(deps, record, caller.name)
    log.info("run pauses", run=after.id, name=after.name, by=after.paused_by)
    return await _kept(deps, after)


@router.post(
    "/{run}/resume",
    status_code=HTTPStatus.ACCEPTED,
    operation_id="runs_resume",
    summary="Resume a paused run",
    responses=responses(
        RUN_PROBLEMS | {409: "It ends or is over, or is paused for a reason that `detail` names"}
    ),
)
async def resume(deps: Deps, record: RunDep, caller: CallerDep) -> RunRecord:
    """Let a paused run go on, as the same run. A run that was not paused stays as
    it is. A run that is over is continued by a new one: `POST /v1/runs` with `resume_from`."""
    after = await resume_run(deps, record, caller.name)
    log.info("run goes on", run=after.id, name=after.name, by=caller.name)
    return await _kept(deps, after)


async def _kept(deps: Dependencies, run: RunRecord) -> RunRecord:
    await keep_record(deps, run.id)
    return (await detailed(deps, [run]))[0]
