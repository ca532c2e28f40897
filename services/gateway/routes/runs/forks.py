"""`/v1/runs/{run}/fork`: a new run from a kept checkpoint of another one, which stays as it is."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from services.contracts.records import Notes, RunRecord, Tags
from services.gateway.dependencies import RUN_PROBLEMS, CallerDep, Deps, RequestTryDep, RunDep
from services.gateway.submission.fitting import DryRun
from services.gateway.submission.run_queueing import queue
from services.gateway.submission.run_submission import RunSubmission, accept, described_run
from services.http import responses

router = APIRouter(prefix="/v1/runs", tags=["runs"])


class Fork(BaseModel):
    """The body of `POST /v1/runs/RUN/fork`: the differences to RUN."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"config": {"optimizer": {"lr": 5e-7}}, "tags": ["lr"]}},
    )

    step: int | None = Field(
        None,
        ge=0,
        lt=10**12,
        description="The step of a kept checkpoint. Default: the newest checkpoint.",
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people. Default: RUN's name with `-fork`."
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Changes of the config, laid over RUN's key by key."
    )
    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] | None = Field(
        None,
        description="The learner and the workers that are to work on it. Default: those of RUN, so "
        "that the fork waits until RUN has ended.",
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    tags: Tags | None = Field(None, description="Words to find it by. Default: RUN's.")
    notes: Notes | None = Field(None, description="What people should know of it. Default: RUN's.")

    def submission(self, run: RunRecord) -> RunSubmission:
        """Return the submission of a fork of `run`."""
        at = "" if self.step is None else f"@{self.step}"
        return RunSubmission(
            **self.model_dump(exclude={"step", "name"}),
            name=self.name or f"{run.name[:95]}-fork",
            resume_from=f"{run.id}{at}",
        )


@router.post(
    "/{run}/fork",
    status_code=HTTPStatus.CREATED,
    operation_id="runs_fork",
    summary="Fork a run",
    responses=responses(
        RUN_PROBLEMS
        | {
            409: "It has no whole checkpoint of that step (`detail` lists the steps that it has), "
            "is being deleted, or several runs have this name",
            422: "A change that a fork cannot have, or the run does not fit the pool's GPUs; "
            "`problems` lists everything that is wrong with it",
        }
    )
    | {200: {"model": DryRun, "description": "With `dry_run`: nothing is queued"}},
)
async def fork(
    deps: Deps,
    record: RunDep,
    changes: Fork,
    answer: Response,
    caller: CallerDep,
    request_try: RequestTryDep,
    dry_run: Annotated[
        bool, Query(description="Queue nothing: say what the run would be, and what it needs.")
    ] = False,
) -> RunRecord | DryRun:
    """Queue a new run that goes on from a kept checkpoint of a run, with changes of its config. The
    run stays as it is, and may train on. The fork has the weights, the optimizer's state, the step
    and the order of the rows of the checkpoint; a key that these depend on cannot change (422).
    Tasks that the run had open, or trained after that step, are sampled again for the fork.

    The checkpoint is pinned, and the run cannot be deleted before its forks are. Any number of
    forks may start from one checkpoint."""
    submission = changes.submission(record)
    if dry_run:
        answer.status_code = HTTPStatus.OK
        return described_run(await accept(deps, submission, is_fork=True))
    return await queue(deps, submission, caller, request_try, is_fork=True)
