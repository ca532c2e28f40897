"""`/v1/files`: datasets, models, weights and checkpoints for hosts without the data volume."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse

from services.gateway.dependencies import Deps
from services.http import OpenFile, responses
from services.http.served_files import open_served

router = APIRouter(prefix="/v1/files", tags=["files"])


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
    Takes requests for one range of bytes."""
    return OpenFile(open_served(deps.volume.root, path), deps.bandwidth)
