"""`/v1/files`: datasets, models, weights, checkpoints, payloads, for hosts without the volume."""

import sys
from contextlib import ExitStack
from http import HTTPStatus
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse

from services.contracts.groups.payload import owner_of
from services.gateway.dependencies import Deps
from services.http import OpenFile, Problem, responses
from services.http.served_files import open_served
from services.payloads.places import require_space
from services.volume import written_beside

router = APIRouter(prefix="/v1/files", tags=["files"])
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.head("/{path:path}", include_in_schema=False)
@router.get(
    "/{path:path}",
    operation_id="files_get",
    summary="Fetch a file of the data volume",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {}}},
        **responses({403: "Not among what is served", 404: "There is no such file"}),
    },
)
async def fetch(
    path: Annotated[str, PathParameter(description="Relative to the data volume.")],
    deps: Deps,
) -> FileResponse:
    """A file under `datasets/`, `runs/RUN/model`, `runs/RUN/weights`, `runs/RUN/checkpoints` or
    `runs/RUN/payloads`. Takes requests for one range of bytes."""
    return OpenFile(open_served(deps.volume.root, path), deps.bandwidth)


@router.put(
    "/{path:path}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="files_put",
    summary="Store the payload of a group",
    openapi_extra={
        "requestBody": {"required": True, "content": BYTES},
    },
    responses=responses(
        {
            403: "Not the name of a payload",
            404: "There is no such run",
            409: "Its attempt is over, or payloads are kept elsewhere",
            411: "No Content-Length",
            413: "Larger than `HEADRACE_UPLOAD_LIMIT`",
            507: "The data volume is full",
        }
    ),
)
async def store(
    path: Annotated[str, PathParameter(description="`runs/RUN/payloads/TASK-ATTEMPT-XXH3.group`.")],
    request: Request,
    deps: Deps,
) -> None:
    """Take a finished group that is too large for Redis, from the worker that holds the attempt.
    Only workers on hosts without the data volume use this."""
    owner = owner_of(path)
    if owner is None:
        raise Problem(
            HTTPStatus.FORBIDDEN, f"{path!r} is not runs/RUN/payloads/TASK-ATTEMPT-XXH3.group"
        )
    if deps.settings.payloads_url is not None:
        raise Problem(
            HTTPStatus.CONFLICT,
            "this installation keeps payloads in a bucket: set HEADRACE_PAYLOADS_URL on the "
            "worker's host to what the gateway has",
        )
    size = request.headers.get("content-length", "")
    if not size.isdigit():
        raise Problem(HTTPStatus.LENGTH_REQUIRED, "send the payload with its Content-Length")
    if await deps.store.runs.get(owner.run) is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no run {owner.run!r}")
    if not (await deps.store.trajectories.needed(owner.run, [(owner.task, owner.attempt)]))[0]:
        raise Problem(HTTPStatus.CONFLICT, f"attempt {owner.attempt} of task {owner.task} is over")
    require_space(deps.volume.root, int(size))
    stack = ExitStack()
    beside = stack.enter_context(written_beside(deps.volume.path(path)))
    try:
        async with await anyio.open_file(beside, "wb") as file:
            async for piece in request.stream():
                await file.write(piece)
    except BaseException:
        stack.__exit__(*sys.exc_info())
        raise
    await anyio.to_thread.run_sync(stack.close)
