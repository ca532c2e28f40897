"""`/v1/datasets/preview`: a file as a dataset, before anything is stored."""

import contextlib
from http import HTTPStatus
from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, File, Form, Request, Response, UploadFile

from services.contracts.file_preview import FilePreview
from services.datasets import Format, SourceFile, preview_in_child
from services.gateway.dependencies import Deps
from services.gateway.mappings import read_mapping
from services.gateway.routes.datasets.uploads import complete_upload
from services.http import CLIENT_GONE, Problem, responses, while_connected

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

ONE_FILE = "send one `file`, or name one `upload` (POST /v1/uploads)"


@router.post(
    "/preview",
    operation_id="uploads_preview",
    summary="Preview a file with a mapping",
    response_model=FilePreview,
    responses=responses({404: "There is no such upload", 422: "The mapping cannot be read"}),
)
async def preview(
    deps: Deps,
    client: Request,
    file: Annotated[
        UploadFile | None,
        File(description="The file, or its beginning (`is_head`), at most 64 MiB."),
    ] = None,
    upload: Annotated[
        str | None, Form(description="The id of a file that was sent in parts.")
    ] = None,
    is_head: Annotated[
        bool, Form(description="The file goes on behind these bytes. Parquet must be whole.")
    ] = False,
    format: Annotated[Format | None, Form(description="Default: guessed.")] = None,
    mapping: Annotated[str | None, Form(description="As in `POST /v1/datasets`.")] = None,
    limit: Annotated[int, Form(ge=1, le=20, description="Rows, at most.")] = 5,
) -> FilePreview | Response:
    """Read the first rows of a file, and make rows of a dataset of them. Nothing is stored. A file
    or a mapping that cannot be used is a `problem` of the answer."""
    columns = read_mapping(mapping)
    if (file is None) == (upload is None):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ONE_FILE, [("file", ONE_FILE)])
    with contextlib.ExitStack() as opened:
        if file is not None:
            source = SourceFile(file.file, PurePath(file.filename or "upload").name)
        else:
            part = await complete_upload(deps, str(upload))
            source = SourceFile(opened.enter_context(part.open()), part.description.name)
        work = preview_in_child(source, format, columns, limit, is_head)
        shown = await while_connected(client, work)
    return Response(status_code=CLIENT_GONE) if shown is None else shown
