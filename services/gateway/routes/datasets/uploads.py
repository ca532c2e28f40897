"""`/v1/uploads`: files that are sent in parts, to become datasets."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from services.datasets.partial_uploads import (
    PartialUpload,
    UploadDescription,
    begin_upload,
    find_upload,
    upload_id,
)
from services.gateway.dependencies import Dependencies, Deps, RequestTryDep
from services.http import Problem, responses
from services.payloads.places import require_space

router = APIRouter(prefix="/v1/uploads", tags=["datasets"])

PIECE = 1 << 20
"""Bytes that are written at once."""
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
UNKNOWN: dict[int | str, str] = {404: "There is no such upload, or it is over"}


class UploadRequest(BaseModel):
    """The body of `POST /v1/uploads`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"name": "train.parquet", "bytes": 163840}},
    )

    name: str = Field(min_length=1, max_length=200, description="The file's name.")
    bytes: int = Field(ge=1, description="Its size.")
    fingerprint: str | None = Field(
        None,
        max_length=200,
        description="Text that tells this file from others of its name and size, e.g. a checksum. "
        "The same file then gets the same upload again, with the bytes that have arrived.",
    )


class Upload(BaseModel):
    """A file that arrives in parts."""

    id: str = Field(description="32 hex digits.")
    name: str = Field(description="The file's name.")
    bytes: int = Field(description="Its size.")
    received: int = Field(description="Bytes that have arrived: where the next part begins.")


async def _find(
    deps: Deps, upload: Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Its id.")]
) -> PartialUpload:
    return await upload_of(deps, upload)


async def upload_of(deps: Dependencies, id: str) -> PartialUpload:
    """Return the upload of this id. Raises Problem 404."""
    is_id = re.fullmatch(r"[0-9a-f]{32}", id)
    upload = await anyio.to_thread.run_sync(find_upload, deps.volume.root, id) if is_id else None
    if upload is None:
        raise _unknown(id)
    return upload


def _unknown(id: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        f"there is no upload {id[:100]!r}: it became a dataset, was deleted, or had no part for a "
        "day; begin it again with POST /v1/uploads",
    )


@contextlib.contextmanager
def while_it_lasts(id: str) -> Iterator[None]:
    """Have a request for an upload that another request deletes meanwhile refused with 404."""
    try:
        yield
    except FileNotFoundError:
        raise _unknown(id) from None


async def complete_upload(deps: Dependencies, id: str) -> PartialUpload:
    """Return the upload of this id, whose file has arrived. Raises Problem 404, and 409 if parts
    are missing."""
    upload = await upload_of(deps, id)
    described = upload.description
    with while_it_lasts(id):
        received = upload.received
    if received < described.bytes:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{described.name} is not whole: {received:,} of {described.bytes:,} bytes have "
            f"arrived; send the others with PUT /v1/uploads/{id}?from_byte={received}",
        )
    return upload


UploadDep = Annotated[PartialUpload, Depends(_find)]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="uploads_create",
    summary="Begin or continue an upload in parts",
    responses=responses({413: "The file is over the limit", 507: "The data volume is full"}),
)
async def create(deps: Deps, asked: UploadRequest, request_try: RequestTryDep) -> Upload:
    """Begin an upload, or find the one of the same file. Send its parts with `PUT`, and name it in
    `POST /v1/datasets`."""
    limit = deps.settings.upload_limit
    if asked.bytes > limit:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"{asked.name} has {asked.bytes:,} bytes, and an upload may have {limit:,}: raise the "
            "gateway's HEADRACE_UPLOAD_LIMIT, or upload a part of it and append the rest with POST "
            "/v1/prompts",
        )
    id = request_try.seed
    if asked.fingerprint is not None:
        id = upload_id(asked.name, asked.bytes, asked.fingerprint)
    description = UploadDescription(id, asked.name, asked.bytes)
    upload = await anyio.to_thread.run_sync(begin_upload, deps.volume.root, description)
    require_space(deps.volume.root, asked.bytes - upload.received)
    return _shown(upload)


@router.get(
    "/{upload}",
    operation_id="uploads_get",
    summary="Show an upload in parts",
    responses=responses(UNKNOWN),
)
async def show(upload: UploadDep) -> Upload:
    """How much of a file has arrived."""
    return _shown(upload)


@router.put(
    "/{upload}",
    operation_id="uploads_put",
    summary="Send a part of a file",
    openapi_extra={"requestBody": {"required": True, "content": BYTES}},
    responses=responses(
        UNKNOWN
        | {
            409: "Bytes before this part are missing; `detail` names the next one",
            413: "The part goes beyond the file's size, or is over 256 MiB",
            507: "The data volume is full",
        }
    ),
)
async def put(
    deps: Deps,
    request: Request,
    upload: UploadDep,
    from_byte: Annotated[int, Query(ge=0, description="Where the part begins in the file.")],
) -> Upload:
    """Write a part of the file. Bytes that have arrived before are skipped, so a part whose answer
    was lost is sent again. What arrives before the connection breaks is kept."""
    position = from_byte
    async for piece in _pieces(request):
        if position + len(piece) > upload.description.bytes:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the part goes beyond the {upload.description.bytes:,} bytes of "
                f"{upload.description.name}: begin another upload if the file has changed",
            )
        await anyio.to_thread.run_sync(require_space, deps.volume.root, len(piece))
        try:
            with while_it_lasts(upload.description.id):
                position = await anyio.to_thread.run_sync(upload.write, position, piece)
        except ValueError as error:
            raise Problem(HTTPStatus.CONFLICT, f"{upload.description.name}: {error}") from None
    return _shown(upload)


@router.delete(
    "/{upload}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="uploads_delete",
    summary="Give up an upload in parts",
    responses=responses(UNKNOWN),
)
async def delete(upload: UploadDep) -> None:
    """Delete what has arrived of a file."""
    await anyio.to_thread.run_sync(upload.delete)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in pieces of at least PIECE bytes, the last one shorter. If the connection
    breaks, what has arrived is the whole body."""
    piece = bytearray()
    with contextlib.suppress(ClientDisconnect):
        async for part in request.stream():
            piece += part
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _shown(upload: PartialUpload) -> Upload:
    described = upload.description
    with while_it_lasts(described.id):
        return Upload(
            id=described.id,
            name=described.name,
            bytes=described.bytes,
            received=upload.received,
        )
