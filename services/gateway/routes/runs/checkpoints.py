"""`/v1/runs/{run}/checkpoints`: list, pin, and download checkpoints."""

from http import HTTPStatus
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from services.contracts.records import RunRecord
from services.gateway.dependencies import RUN_PROBLEMS, Dependencies, Deps, RunDep
from services.gateway.paging import Cursor, Limit, Next, page_of
from services.http import Problem, limited, responses
from services.runtime.logs import get_logger
from services.volume.kept_checkpoints import KeptCheckpoint, TarStream, kept_checkpoints, pin

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Step = Annotated[int, Path(ge=0, le=10**12, description="The step that it was made after.")]
PROBLEMS: dict[int | str, str] = RUN_PROBLEMS | {
    404: "There is no such run, or it has no checkpoint of this step; `detail` lists its steps"
}
TAR: dict[int | str, dict[str, Any]] = {
    200: {"description": "A tar archive", "content": {"application/x-tar": {}}}
}

log = get_logger(__name__)


class Checkpoint(BaseModel):
    """A checkpoint of a run: a model's folder, and what training needs to go on."""

    step: int = Field(description="The step that it was made after.")
    directory: str = Field(description="Relative to the data volume.")
    bytes: int = Field(description="Size of its files.")
    created: float = Field(description="When it was written, in Unix seconds.")
    current: bool = Field(description="Whether the run goes on from it.")
    pinned: bool = Field(description="Whether it stays as long as the run does.")


class CheckpointList(BaseModel):
    """A page of the checkpoints of a run, the newest step first."""

    checkpoints: list[Checkpoint] = Field(description="Those on the data volume now.")
    next: Next


@router.get(
    "/{run}/checkpoints",
    operation_id="run_checkpoints_list",
    summary="List checkpoints",
    responses=responses(RUN_PROBLEMS),
)
async def list_all(
    deps: Deps, record: RunDep, limit: Limit = 200, cursor: Cursor = None
) -> CheckpointList:
    """The checkpoints that the run has kept. `RUN@STEP` names one of them wherever a model or a run
    to resume is named."""
    kept = [_shown(deps, record, each) for each in await _kept(deps, record)]
    page, following = page_of(kept, lambda each: (-each.step, -each.created), limit, cursor)
    return CheckpointList(checkpoints=page, next=following)


@router.post(
    "/{run}/checkpoints/{step}/pin",
    operation_id="run_checkpoints_pin",
    summary="Pin a checkpoint",
    responses=responses(PROBLEMS),
)
async def pin_one(deps: Deps, record: RunDep, step: Step) -> Checkpoint:
    """Keep a checkpoint as long as the run exists, in addition to the
    `training.keep_checkpoints` newest ones."""
    return await _pinned(deps, record, step, True)


@router.post(
    "/{run}/checkpoints/{step}/unpin",
    operation_id="run_checkpoints_unpin",
    summary="Unpin a checkpoint",
    responses=responses(
        PROBLEMS | {409: "An unfinished fork needs it, or several runs have this name"}
    ),
)
async def unpin_one(deps: Deps, record: RunDep, step: Step) -> Checkpoint:
    """Take the pin away: the checkpoint goes when a newer one takes its place. Refused (409) while
    an unfinished fork has no checkpoint of its own."""
    directory = str((await _checkpoint_of(deps, record, step)).folder.relative_to(deps.volume.root))
    for fork in await deps.store.runs.live():
        if fork.is_fork and fork.checkpoint == directory:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"run {fork.name} ({fork.id}, {fork.state}) was forked from this checkpoint and "
                "has none of its own yet: wait for that, or cancel the fork",
            )
    return await _pinned(deps, record, step, False)


@router.get(
    "/{run}/checkpoints/{step}/download",
    operation_id="run_checkpoints_download",
    summary="Download a checkpoint",
    response_class=StreamingResponse,
    responses=TAR | responses(PROBLEMS),
)
async def download(deps: Deps, record: RunDep, step: Step) -> StreamingResponse:
    """A checkpoint as a tar archive, with one folder. The archive is made while it is sent."""
    kept = await _checkpoint_of(deps, record, step)
    name = f"{record.id}-{kept.folder.name}"
    stream = await anyio.to_thread.run_sync(TarStream, kept.folder, name)
    headers = {
        "Content-Length": str(stream.bytes),
        "Content-Disposition": f'attachment; filename="{name}.tar"',
    }
    pieces = limited(stream.pieces(), deps.bandwidth)
    return StreamingResponse(pieces, media_type="application/x-tar", headers=headers)


async def _kept(deps: Dependencies, record: RunRecord) -> list[KeptCheckpoint]:
    folder = deps.volume.path(f"runs/{record.id}/checkpoints")
    return await anyio.to_thread.run_sync(kept_checkpoints, folder)


async def _checkpoint_of(deps: Dependencies, record: RunRecord, step: int) -> KeptCheckpoint:
    """Return the checkpoint of a step that was written last. Raises Problem 404."""
    kept = await _kept(deps, record)
    for each in kept:
        if each.step == step:
            return each
    steps = ", ".join(str(each.step) for each in kept) or "none"
    raise Problem(
        HTTPStatus.NOT_FOUND,
        f"run {record.name} ({record.id}) has no checkpoint of step {step}; it has those of "
        f"steps: {steps}",
    )


async def _pinned(deps: Dependencies, record: RunRecord, step: int, wanted: bool) -> Checkpoint:
    kept = await _checkpoint_of(deps, record, step)
    try:
        await anyio.to_thread.run_sync(pin, kept.folder, wanted)
    except FileNotFoundError:
        raise Problem(
            HTTPStatus.NOT_FOUND, f"the checkpoint of step {step} was deleted meanwhile"
        ) from None
    log.info("checkpoint pinned", run=record.id, step=step, pinned=wanted)
    return _shown(deps, record, kept).model_copy(update={"pinned": wanted})


def _shown(deps: Dependencies, record: RunRecord, kept: KeptCheckpoint) -> Checkpoint:
    directory = str(kept.folder.relative_to(deps.volume.root))
    return Checkpoint(
        step=kept.step,
        directory=directory,
        bytes=kept.bytes,
        created=kept.created,
        current=directory == record.checkpoint,
        pinned=kept.is_pinned,
    )
