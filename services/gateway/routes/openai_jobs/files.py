"""`files` of OpenAI's API: the files of fine-tuning jobs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, BinaryIO, Literal, TypeVar

import anyio.to_thread
from fastapi import APIRouter, File, Form, Header, Path, Query, Request, UploadFile
from fastapi.responses import FileResponse

from services.gateway.callers import Caller
from services.gateway.dependencies import CallerDep, Dependencies, Deps
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.file_shelf import PIECE, FileShelf
from services.gateway.openai_jobs.files import (
    DeletedFile,
    FieldError,
    FileList,
    FileRecord,
    FineTuningFile,
    checked_name,
    checked_purpose,
    expiry_seconds,
    new_id,
    page_of,
)
from services.http import OpenFile
from services.payloads.places import require_space

T = TypeVar("T")
ERRORS: dict[int | str, str] = {
    400: "A field or a row cannot be used; `message` says why, and `param` which",
    413: "Larger than `HEADRACE_UPLOAD_LIMIT`",
    507: "The data volume is full",
}
NO_FILE: dict[int | str, str] = {404: "There is no such file"}

router = APIRouter(prefix="/openai/v1/files", tags=["fine-tuning"], responses=openai_errors(ERRORS))

FileId = Annotated[str, Path(description="The file's id.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="The same request again gets the file of the first one.",
    ),
]


def shelf_of(deps: Dependencies) -> FileShelf:
    """Return the files of this installation."""
    return FileShelf(deps.settings.data)


@contextmanager
def in_openai_form() -> Iterator[None]:
    """Turn FieldError into the answer 400 in OpenAI's form."""
    try:
        yield
    except FieldError as error:
        place = f"{error.param}: " if error.param else ""
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST, f"{place}{error}", error.param or None, "invalid_value"
        ) from None


async def in_thread(work: Callable[[], T]) -> T:
    """Return the result of work that blocks. Raises SessionProblem for an unusable field."""
    with in_openai_form():
        return await anyio.to_thread.run_sync(work)


@router.post(
    "",
    operation_id="fine_tuning_files_create",
    summary="Upload a file",
    response_model_exclude_none=True,
)
async def create(
    deps: Deps,
    caller: CallerDep,
    request: Request,
    file: Annotated[UploadFile, File(description="JSON lines in one of OpenAI's forms.")],
    purpose: Annotated[str, Form(description="`fine-tune`.")],
    anchor: Annotated[
        str | None, Form(alias="expires_after[anchor]", description="`created_at`.")
    ] = None,
    seconds: Annotated[
        str | None,
        Form(alias="expires_after[seconds]", description="From 3,600 to 2,592,000."),
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> FineTuningFile:
    """Check each row of a file, and keep the file. An error names the line."""
    await refuse_other_fields(request, create_fields)
    id = new_id("file-", caller.digest, idempotency_key)

    def add() -> FineTuningFile:
        kind, lasts = checked_purpose(purpose), expiry_seconds(anchor, seconds)
        name = checked_name(file.filename)
        require_space(deps.settings.data, file.size or 0)
        pieces, of = pieces_of(file.file), (caller.project, caller.organization)
        return shelf_of(deps).add(id, name, kind, pieces, lasts, *of)

    return await in_thread(add)


create_fields = {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}


async def refuse_other_fields(request: Request, known: set[str]) -> None:
    """Raise SessionProblem for a field of a form that the route would ignore."""
    for name in await request.form():
        if name not in known:
            raise SessionProblem(
                HTTPStatus.BAD_REQUEST, f"{name[:80]!r} is not known here", name[:80]
            )


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Iterate over a file's content."""
    file.seek(0)
    while piece := file.read(PIECE):
        yield piece


@router.get(
    "",
    operation_id="fine_tuning_files_list",
    summary="List files",
    response_model_exclude_none=True,
)
async def list_all(
    deps: Deps,
    caller: CallerDep,
    purpose: Annotated[str | None, Query(description="Only files for this.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Files of a page.")] = 10_000,
    order: Annotated[
        Literal["asc", "desc"], Query(description="By time: `desc` has the newest first.")
    ] = "desc",
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
) -> FileList:
    """The files, page by page."""

    def listed() -> FileList:
        every = [f for f in shelf_of(deps).files() if caller.sees(f.project)]
        files = [f for f in every if purpose in (None, f.purpose)]
        return page_of(files, after, limit, order == "asc")

    return await in_thread(listed)


@router.get(
    "/{file}",
    operation_id="fine_tuning_files_get",
    summary="Show a file",
    response_model_exclude_none=True,
    responses=openai_errors(NO_FILE),
)
async def get(deps: Deps, caller: CallerDep, file: FileId) -> FineTuningFile:
    """A file's name, size and purpose."""
    return await find_file(deps, caller, file)


@router.delete(
    "/{file}",
    operation_id="fine_tuning_files_delete",
    summary="Delete a file",
    responses=openai_errors(NO_FILE),
)
async def delete(deps: Deps, caller: CallerDep, file: FileId) -> DeletedFile:
    """Delete a file. Datasets that were made of it stay."""
    await find_file(deps, caller, file)
    if not await in_thread(lambda: shelf_of(deps).delete(file)):
        raise no_file(file)
    return DeletedFile(id=file)


@router.get(
    "/{file}/content",
    operation_id="fine_tuning_files_download",
    summary="Download a file",
    response_class=FileResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {}}},
        **openai_errors(NO_FILE),
    },
)
async def content(deps: Deps, caller: CallerDep, file: FileId) -> FileResponse:
    """The file as it was sent."""
    await find_file(deps, caller, file)
    opened = await in_thread(lambda: shelf_of(deps).open(file))
    if opened is None:
        raise no_file(file)
    return OpenFile(opened, deps.bandwidth)


async def find_file(deps: Dependencies, caller: Caller, id: str) -> FileRecord:
    """Return a file that the caller sees. Raises SessionProblem 404."""
    record = await in_thread(lambda: shelf_of(deps).file(id))
    if record is None or not caller.sees(record.project):
        raise no_file(id)
    return record


def no_file(id: str) -> SessionProblem:
    """Return the 404 for a file's id."""
    return SessionProblem(HTTPStatus.NOT_FOUND, f"there is no file {id[:80]!r}", "file_id")
