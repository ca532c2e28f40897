"""`uploads` of OpenAI's API: large files in parts, which survive a killed gateway."""

import time
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, File, Path, Request, UploadFile
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.callers import Caller
from services.gateway.dependencies import CallerDep, Dependencies, Deps
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.file_shelf import FileShelf, new_upload
from services.gateway.openai_jobs.files import (
    FieldError,
    FineTuningPart,
    FineTuningUpload,
    UploadRecord,
    checked_name,
    checked_purpose,
    expiry_seconds,
    new_id,
)
from services.gateway.routes.openai_jobs.files import (
    ERRORS,
    IdempotencyKey,
    in_thread,
    pieces_of,
    refuse_other_fields,
    shelf_of,
)

NO_UPLOAD: dict[int | str, str] = {404: "There is no such upload"}

router = APIRouter(
    prefix="/openai/v1/uploads", tags=["fine-tuning"], responses=openai_errors(ERRORS)
)

UploadId = Annotated[str, Path(description="The upload's id.")]


class NewUpload(BaseModel):
    """A file that will come in parts."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "filename": "rows.jsonl",
                "purpose": "fine-tune",
                "bytes": 120,
                "mime_type": "text/jsonl",
            }
        },
    )

    filename: Any = Field(None, description="The file's name.")
    purpose: Any = Field(None, description="`fine-tune`.")
    bytes: Any = Field(None, description="The size of the whole file.")
    mime_type: Any = Field(None, description="Not used.")
    expires_after: Any = Field(None, description="When the file expires.")


class PartsOfUpload(BaseModel):
    """The parts of a file, in its order."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"example": {"part_ids": ["part_1"]}}
    )

    part_ids: Any = Field(None, description="Ids of parts.")
    md5: Any = Field(None, description="The file's checksum, in hex.")


@router.post(
    "",
    operation_id="fine_tuning_uploads_create",
    summary="Begin an upload",
    response_model_exclude_none=True,
)
async def create(
    deps: Deps, caller: CallerDep, new: NewUpload, idempotency_key: IdempotencyKey = None
) -> FineTuningUpload:
    """Begin a file that comes in parts, within an hour."""
    id = new_id("upload_", caller.digest, idempotency_key)

    def begin() -> FineTuningUpload:
        _refuse_others(new)
        lasts = new.expires_after if new.expires_after is not None else {}
        if not isinstance(lasts, dict) or lasts.keys() - {"anchor", "seconds"}:
            raise FieldError("expires_after", "must have anchor and seconds")
        most = deps.settings.upload_limit
        if type(new.bytes) is not int or not 0 < new.bytes <= most:
            raise FieldError(
                "bytes",
                f"must be a whole number from 1 to {most}; a gateway with a larger "
                "HEADRACE_UPLOAD_LIMIT takes more",
            )
        record = new_upload(
            id,
            checked_name(new.filename),
            checked_purpose(new.purpose),
            new.bytes,
            expiry_seconds(lasts.get("anchor"), lasts.get("seconds")),
            time.time(),
        )
        of = {"project": caller.project, "organization": caller.organization}
        return shelf_of(deps).begin(record.model_copy(update=of)).shown

    return await in_thread(begin)


@router.post(
    "/{upload}/parts",
    operation_id="fine_tuning_parts_create",
    summary="Add a part",
    responses=openai_errors(NO_UPLOAD | {413: "Larger than 64 MiB"}),
)
async def add_part(
    deps: Deps,
    caller: CallerDep,
    request: Request,
    upload: UploadId,
    data: Annotated[UploadFile, File(description="Bytes of the file.")],
    idempotency_key: IdempotencyKey = None,
) -> FineTuningPart:
    """Keep a part of a file. Parts may come in any order, and at the same time."""
    await refuse_other_fields(request, {"data"})
    shelf, record = await _upload_of(deps, caller, upload)
    id = new_id("part_", caller.digest + upload, idempotency_key)
    return await in_thread(lambda: shelf.add_part(record, id, pieces_of(data.file)))


@router.post(
    "/{upload}/complete",
    operation_id="fine_tuning_uploads_complete",
    summary="Complete an upload",
    response_model_exclude_none=True,
    responses=openai_errors(NO_UPLOAD),
)
async def complete(
    deps: Deps, caller: CallerDep, upload: UploadId, parts: PartsOfUpload
) -> FineTuningUpload:
    """Make a file of parts, in the order of `part_ids`. The same request again gets the same
    file."""
    shelf, record = await _upload_of(deps, caller, upload)

    def completed() -> FineTuningUpload:
        _refuse_others(parts)
        ids = parts.part_ids
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise FieldError("part_ids", "must be a list of ids")
        if parts.md5 is not None and not isinstance(parts.md5, str):
            raise FieldError("md5", "must be text")
        return shelf.complete(record, ids, parts.md5).shown

    return await in_thread(completed)


@router.post(
    "/{upload}/cancel",
    operation_id="fine_tuning_uploads_cancel",
    summary="Cancel an upload",
    response_model_exclude_none=True,
    responses=openai_errors(NO_UPLOAD),
)
async def cancel(deps: Deps, caller: CallerDep, upload: UploadId) -> FineTuningUpload:
    """Forget the parts of a file."""
    shelf, record = await _upload_of(deps, caller, upload)
    return (await in_thread(lambda: shelf.cancel(record))).shown


async def _upload_of(deps: Dependencies, caller: Caller, id: str) -> tuple[FileShelf, UploadRecord]:
    shelf = shelf_of(deps)
    record = await in_thread(lambda: shelf.upload(id))
    if record is None or not caller.sees(record.project):
        raise SessionProblem(HTTPStatus.NOT_FOUND, f"there is no upload {id[:80]!r}", "upload_id")
    return shelf, record


def _refuse_others(body: BaseModel) -> None:
    for name in body.model_extra or ():
        raise FieldError(name[:80], "is not known here")
