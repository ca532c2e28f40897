"""`/v1/files`: datasets, models, weights and checkpoints for hosts without the data volume. Other
files of the volume (logs, Redis' files) are not served."""

import re
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse

from services.gateway.dependencies import Deps
from services.http import Problem, responses

router = APIRouter(prefix="/v1/files", tags=["files"])

# A part never begins with a dot: neither `..` nor a file that is still being written.
_PART = r"(?!\.)[^/\\\x00]+"
SERVED = re.compile(
    rf"(datasets/{_PART}/{_PART}|runs/{_PART}/(model|weights|checkpoints)(/{_PART})+)"
)


@router.head("/{path:path}", include_in_schema=False)
@router.get(
    "/{path:path}",
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
    """A file under `datasets/`, `runs/RUN/model`, `runs/RUN/weights` or `runs/RUN/checkpoints`.
    Takes range requests."""
    if not SERVED.fullmatch(path):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{path!r} is not served: only datasets/ and runs/RUN (model, weights, "
            "checkpoints) are",
        )
    file = deps.volume.path(path)
    # A link that leads out of the volume is as good as `..`.
    if not file.is_file() or not file.resolve().is_relative_to(deps.volume.root.resolve()):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no file {path!r} on the data volume")
    return FileResponse(file)
