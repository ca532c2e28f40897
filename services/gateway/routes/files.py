"""`/v1/files`: datasets, models, weights and checkpoints for hosts without the data volume. Other
files of the volume (logs, Redis' files) are not served."""

import errno
import os
import re
from http import HTTPStatus
from io import BufferedReader
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from services.gateway.dependencies import Deps
from services.http import Problem, responses
from services.models import open_below

router = APIRouter(prefix="/v1/files", tags=["files"])

# A part never begins with a dot: neither `..` nor a file that is still being written.
_PART = r"(?!\.)[^/\\\x00]+"
SERVED = re.compile(
    rf"(datasets/{_PART}/{_PART}|runs/{_PART}/(model|weights|checkpoints)(/{_PART})+)"
)

OCTETS = "application/octet-stream"
# A FileNotFoundError of our own has no number.
NO_FILE = {
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO
}  # fmt: skip


@router.head("/{path:path}", include_in_schema=False)
@router.get(
    "/{path:path}",
    summary="Fetch a file of the data volume",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {OCTETS: {}}},
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
    top, *names = path.split("/")
    try:
        # Below `datasets` or `runs` Headrace makes no links, so none is followed.
        file = os.fdopen(open_below(deps.volume.root / top, names), "rb")
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no file {path!r} on the data volume"
        ) from None
    return OpenFile(file)


class OpenFile(FileResponse):
    """An open file: whatever its name leads to by now, these bytes are sent."""

    def __init__(self, file: BufferedReader) -> None:
        super().__init__(f"/proc/self/fd/{file.fileno()}", media_type=OCTETS)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
