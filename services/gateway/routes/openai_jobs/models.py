"""`/openai/v1/models`, and `/openai/v1/fine_tuning/checkpoints/MODEL/permissions`."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Path, Query
from pydantic import Field

from services.contracts.openai_models import read_fine_tuned_name
from services.contracts.records import RunRecord
from services.gateway.callers import NAME, Caller
from services.gateway.dependencies import CallerDep, Dependencies, Deps
from services.gateway.openai.bodies import OpenBody, example_of
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.job_shelf import JobShelf
from services.gateway.openai_jobs.models import (
    DeletedOpenAIModel,
    OpenAIModel,
    OpenAIModelList,
    model,
    models_of,
)
from services.gateway.openai_jobs.permissions import (
    DeletedPermission,
    Permission,
    PermissionPage,
    add_permissions,
    delete_permission,
    kept_permissions,
)
from services.gateway.policy.finished_models import kept_steps
from services.gateway.policy.served_models import Asked, not_found
from services.gateway.routes.policy import asked_run
from services.gateway.run_deletion import delete_run
from services.runtime.logs import get_logger

log = get_logger(__name__)

NO_MODEL: dict[int | str, str] = {404: "There is no such model"}
ERRORS: dict[int | str, str] = {400: "The request cannot be used; `message` says why"}

router = APIRouter(prefix="/openai/v1", tags=["fine-tuning"], responses=openai_errors(ERRORS))

ModelName = Annotated[str, Path(description="Its name. It may have `/` and `:`.")]
FineTuned = Annotated[
    str, Path(description="`ft:BASE:ORG:SUFFIX:ID`, or a checkpoint: `…:ckpt-step-N`.")
]


class PermissionsRequest(OpenBody):
    """The projects that may use a model."""

    model_config = example_of({"project_ids": ["support-bots"]})

    project_ids: Any = Field(None, description="A list of projects.")


@router.get("/models", operation_id="fine_tuned_models_list", summary="List models")
async def list_all(deps: Deps, caller: CallerDep) -> OpenAIModelList:
    """The fine-tuned models, each `ft:BASE:ORG:SUFFIX:ID`, and what jobs may start from: the models
    that runs have started from, and each finished run as `run:RUN`. Any other model that
    `headrace submit` takes may be named, too: a folder, or a name of the hub."""
    runs = [run for run in await deps.index.all() if caller.sees(run.project)]
    jobs = await anyio.to_thread.run_sync(JobShelf(deps.settings.data).all)
    return OpenAIModelList(data=models_of(runs, {job.run: job.model_name() for job in jobs}))


@router.get(
    "/models/{name:path}",
    operation_id="fine_tuned_models_get",
    summary="Show a model",
    responses=openai_errors(NO_MODEL),
)
async def get(deps: Deps, caller: CallerDep, name: ModelName) -> OpenAIModel:
    """A model of the list, or a kept checkpoint."""
    if read_fine_tuned_name(name) is not None:
        run = await _made_by(deps, caller, name)
        return model(name, run.finished or run.created, run.project or "headrace")
    for each in (await list_all(deps, caller)).data:
        if each.id == name:
            return each
    raise _no_model(name)


@router.delete(
    "/models/{name:path}",
    operation_id="fine_tuned_models_delete",
    summary="Delete a fine-tuned model",
    responses=openai_errors(NO_MODEL | {409: "Its run is not over, or something needs its model"}),
)
async def delete(deps: Deps, caller: CallerDep, name: ModelName) -> DeletedOpenAIModel:
    """Delete the model and its run, as `DELETE /v1/runs/RUN` does: its metrics and checkpoints go
    with it. The files of its job stay."""
    named = read_fine_tuned_name(name)
    if named is None or named[1] is not None:
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST,
            f"{name[:200]!r} cannot be deleted: only a fine-tuned model can, by its name without a "
            "checkpoint, and its checkpoints go with it",
            "model",
        )
    run = await _made_by(deps, caller, name)
    if not caller.sees(run.project):
        raise _no_model(name)
    await delete_run(deps, run)
    log.info("run deleted", run=run.id, name=run.name)
    return DeletedOpenAIModel(id=name)


@router.get(
    "/fine_tuning/checkpoints/{name:path}/permissions",
    operation_id="fine_tuned_permissions_list",
    summary="List a model's permissions",
    responses=openai_errors(NO_MODEL),
)
async def list_permissions(
    deps: Deps,
    caller: CallerDep,
    name: FineTuned,
    project_id: Annotated[str | None, Query(description="Only those of this project.")] = None,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Permissions of a page.")] = 10,
    order: Annotated[
        Literal["ascending", "descending"], Query(description="By time.")
    ] = "descending",
) -> PermissionPage:
    """The projects that may use a model besides the project of its run. Keys without a project may
    use every model. A permission is for the run's model and all its checkpoints."""
    run = await _made_by(deps, caller, name)
    kept = await anyio.to_thread.run_sync(kept_permissions, deps.volume.root, run.id)
    kept = [each for each in kept if project_id in (None, each.project_id)]
    listed = kept if order == "ascending" else kept[::-1]
    places = {permission.id: place for place, permission in enumerate(listed)}
    if after is not None and after not in places:
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST, f"after: there is no permission {after[:80]!r}", "after"
        )
    start = 0 if after is None else places[after] + 1
    return _page(listed[start : start + limit], start + limit < len(listed))


@router.post(
    "/fine_tuning/checkpoints/{name:path}/permissions",
    operation_id="fine_tuned_permissions_create",
    summary="Permit projects to use a model",
    responses=openai_errors(NO_MODEL),
)
async def create_permissions(
    deps: Deps, caller: CallerDep, name: FineTuned, request: PermissionsRequest
) -> PermissionPage:
    """Permit the keys of projects to ask the model, and its checkpoints. A permission that is there
    stays."""
    projects = request.project_ids
    if (
        not isinstance(projects, list)
        or not projects
        or not all(isinstance(each, str) and NAME.fullmatch(each) for each in projects)
    ):
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST,
            "project_ids: must be a list of projects, each 1 to 64 letters, digits, '_', '-', '.'",
            "project_ids",
        )
    run = await _made_by(deps, caller, name)
    if not caller.sees(run.project):
        raise _no_model(name)
    try:
        added = await anyio.to_thread.run_sync(add_permissions, deps.volume.root, run.id, projects)
    except ValueError as error:
        raise SessionProblem(HTTPStatus.BAD_REQUEST, str(error), "project_ids") from None
    return _page(added, False)


@router.delete(
    "/fine_tuning/checkpoints/{name:path}/permissions/{permission}",
    operation_id="fine_tuned_permissions_delete",
    summary="Take a permission back",
    responses=openai_errors({404: "There is no such model, or no such permission"}),
)
async def delete_one(
    deps: Deps,
    caller: CallerDep,
    name: FineTuned,
    permission: Annotated[str, Path(description="Its id.")],
) -> DeletedPermission:
    """The project's keys may not use the model any more."""
    run = await _made_by(deps, caller, name)
    if not caller.sees(run.project):
        raise _no_model(name)
    if not await anyio.to_thread.run_sync(delete_permission, deps.volume.root, run.id, permission):
        raise SessionProblem(
            HTTPStatus.NOT_FOUND, f"there is no permission {permission[:80]!r}", "permission_id"
        )
    return DeletedPermission(id=permission)


async def _made_by(deps: Dependencies, caller: Caller, name: str) -> RunRecord:
    """Return the run that has made a model. Raises SessionProblem 404."""
    named = read_fine_tuned_name(name)
    if named is None:
        raise _no_model(name)
    run = await asked_run(deps, caller, Asked(*named))
    kept = await anyio.to_thread.run_sync(kept_steps, deps.volume.root, run)
    if not kept or named[1] not in (None, *kept):
        raise _no_model(name)
    return run


def _page(permissions: list[Permission], has_more: bool) -> PermissionPage:
    return PermissionPage(
        data=permissions,
        first_id=permissions[0].id if permissions else None,
        last_id=permissions[-1].id if permissions else None,
        has_more=has_more,
    )


def _no_model(name: str) -> SessionProblem:
    return not_found(
        f"there is no model {name[:200]!r}: GET /openai/v1/models lists them, and `headrace "
        "checkpoints RUN` the checkpoints of a run"
    )
