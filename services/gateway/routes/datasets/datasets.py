"""`/v1/datasets`: upload, list, show, preview, delete."""

import contextlib
from http import HTTPStatus
from pathlib import PurePath
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile
from pydantic import BaseModel, Field

from services.contracts.records import DatasetRecord
from services.datasets import DatasetReader, Format, SourceFile
from services.datasets.hub_files import hub_reference
from services.gateway.dependencies import (
    DATASET_PROBLEMS,
    DatasetDep,
    Deps,
    users_of,
)
from services.gateway.mappings import read_mapping
from services.gateway.paging import Cursor, Limit, Next, cursor_at, number_in, page_of
from services.gateway.routes.datasets.uploads import complete_upload
from services.gateway.submission.dataset_creation import (
    DatasetSource,
    Uploaded,
    create_dataset,
    create_from_hub,
    remove_files,
)
from services.gateway.submission.verifier_check import check_named
from services.http import CLIENT_GONE, Problem, responses
from services.recovery.record_copies import forget_dataset
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

ONE_SOURCE = "is a source of its own: send no `file` and no `upload` beside it"
NO_FILE = (
    "send at least one `file`, or name an `upload` (POST /v1/uploads) or a dataset of the `hub`"
)

log = get_logger(__name__)


class DatasetList(BaseModel):
    """A page of datasets, by name."""

    datasets: list[DatasetRecord] = Field(description="Each with its segments.")
    next: Next


class PreviewRow(BaseModel):
    """One row as rollout workers see it."""

    index: int = Field(description="Its place in the dataset, from 0; it never changes.")
    prompt: str | list[dict[str, Any]] = Field(description="Text, or chat messages.")
    answer: Any = Field(description="The verifier's reference, as it stood in the source.")
    columns: dict[str, Any] = Field(description="The columns that are neither; verifiers get them.")


class DatasetPreview(BaseModel):
    """Some rows."""

    rows: list[PreviewRow] = Field(description="In their order.")
    total: int = Field(description="Rows of the dataset.")
    next: Next


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="datasets_create",
    summary="Upload a dataset",
    response_model=Uploaded,
    responses={
        200: {"description": "Uploaded before; nothing changed", "model": Uploaded},
        **responses(
            {
                409: "There is a dataset of this name with other rows or other defaults",
                413: "The upload is over the limit",
                415: "Not a format that can be read",
                422: "Rows or the mapping cannot be used; `detail` counts bad rows, and names "
                "the first by their lines",
                424: "The hub cannot be reached",
                507: "The data volume is full, or cannot be written",
            }
        ),
    },
)
async def create(
    deps: Deps,
    client: Request,
    response: Response,
    file: Annotated[
        list[UploadFile] | None,
        File(
            description="JSON lines, CSV (with a header), Parquet, or a tar of JSON. Several files "
            "become one dataset, in their order."
        ),
    ] = None,
    upload: Annotated[
        list[str] | None,
        Form(
            description="Ids of files that were sent in parts (`POST /v1/uploads`), in their order."
        ),
    ] = None,
    hub: Annotated[
        str | None,
        Form(
            max_length=300,
            description="A dataset of the hub instead of files: `openai/gsm8k`, "
            "`openai/gsm8k/test` or `openai/gsm8k@REVISION/main/test` (config and split).",
        ),
    ] = None,
    name: Annotated[
        str | None,
        Form(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
            description="Default: the file's name without its suffix.",
        ),
    ] = None,
    format: Annotated[Format | None, Form(description="Default: guessed.")] = None,
    mapping: Annotated[
        str | None,
        Form(
            description='Columns as JSON: `{"prompt": "question", "answer": "answer"}`. Several '
            "columns of the prompt are joined by blank lines. Default: the first of prompt, "
            "question, problem, instruction (with input and context), messages, conversations, "
            "text; and of answer, solution, gold, target, ground_truth, verl's and HumanEval's "
            "columns, output, completion, response, and the last turn of a chat that the assistant "
            "ends. Rows keep the other columns for verifiers. Or the name of "
            "a well-known file: gsm8k, math, humaneval, mbpp, ifeval, countdown, reasoning_gym. "
            "The dataset then has a template and a verifier of its own (`defaults`)."
        ),
    ] = None,
    verifier: Annotated[
        str | None,
        Form(
            max_length=100,
            description="A verifier that all references are read with, at once; a mapping brings "
            "its own.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        Form(max_length=200, description="Where the rows come from. Default: the file's name."),
    ] = None,
    bad_rows: Annotated[
        Literal["refuse", "skip"],
        Form(
            description="What happens to an upload with rows that cannot be used: `refuse` it, and "
            "name the rows, or `skip` them, and keep the others."
        ),
    ] = "refuse",
) -> Uploaded | Response:
    """Convert uploaded files into a dataset. Uploading the same again changes nothing (200). Other
    rows under a name that exists are refused (409), and so is a mapping with other defaults."""
    columns = read_mapping(mapping)
    if verifier is not None:
        await check_named(deps, verifier)
    asked = DatasetSource(name, format, columns, verifier, source, bad_rows == "skip")
    if hub is not None:
        if file or upload:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ONE_SOURCE, [("hub", ONE_SOURCE)])
        made = await create_from_hub(deps, client, hub_reference(hub), asked)
        return _answered(response, made)
    with contextlib.ExitStack() as opened:
        parts = [await complete_upload(deps, id) for id in upload or ()]
        files = [
            SourceFile(part.file, PurePath(part.filename or "upload").name) for part in file or ()
        ]
        files += [
            SourceFile(opened.enter_context(part.open()), part.description.name) for part in parts
        ]
        if not files:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, NO_FILE, [("file", NO_FILE)])
        made = await create_dataset(deps, client, files, asked)
    for part in parts if made else ():
        await anyio.to_thread.run_sync(part.delete)
    return _answered(response, made)


def _answered(response: Response, made: Uploaded | None) -> Uploaded | Response:
    """Return the answer to an upload. None: the client has left."""
    if made is None:
        return Response(status_code=CLIENT_GONE)
    if not made.added:
        response.status_code = HTTPStatus.OK
    return made


@router.get("", operation_id="datasets_list", summary="List datasets")
async def list_all(deps: Deps, limit: Limit = 200, cursor: Cursor = None) -> DatasetList:
    """All datasets, by name, page by page."""
    records = sorted(await deps.store.datasets.list(), key=_by_name)
    page, following = page_of(records, _by_name, limit, cursor)
    return DatasetList(datasets=page, next=following)


def _by_name(record: DatasetRecord) -> tuple[str, str]:
    return record.name, record.id


@router.get(
    "/{dataset}",
    operation_id="datasets_get",
    summary="Show a dataset",
    responses=responses(DATASET_PROBLEMS),
)
async def show(record: DatasetDep) -> DatasetRecord:
    """One dataset and its segments."""
    return record


@router.get(
    "/{dataset}/preview",
    operation_id="datasets_preview",
    summary="Look at rows",
    response_model=DatasetPreview,
    responses=responses(DATASET_PROBLEMS),
)
async def preview(
    deps: Deps,
    record: DatasetDep,
    row: Annotated[int, Query(ge=0, description="The first row of the first page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="Rows of a page, at most.")] = 5,
    cursor: Cursor = None,
) -> Response:
    """Rows by index, as rollout workers see them, page by page."""
    start = number_in(cursor, row)
    end = min(start + limit, record.rows)
    indices = range(start, end)
    read = await anyio.to_thread.run_sync(DatasetReader(deps.volume, record).rows, indices)
    shown = DatasetPreview(
        rows=[
            PreviewRow(index=index, prompt=row.prompt, answer=row.answer, columns=row.columns)
            for index, row in zip(indices, read, strict=True)
        ],
        total=record.rows,
        next=cursor_at((end,)) if end < record.rows else None,
    )
    try:
        return Response(shown.model_dump_json(), media_type="application/json")
    except ValueError:
        # Written by a version that took deeper ones.
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "a row of these is nested too deeply to be shown"
        ) from None


@router.delete(
    "/{dataset}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="datasets_delete",
    summary="Delete a dataset",
    responses=responses(DATASET_PROBLEMS | {409: "A run that is not over uses it"}),
)
async def delete(deps: Deps, record: DatasetDep) -> None:
    """Delete a dataset and its files. Refused (409) while a run or a chain uses it that is not
    over."""
    async with deps.volume.dataset_lock():
        users = await users_of(deps, record)
        if users:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"dataset {record.name!r} is used by {', '.join(users)}: cancel that or let it end "
                "first",
            )
        await anyio.to_thread.run_sync(forget_dataset, deps.volume.root, record.id)
        await deps.store.datasets.delete(record.id)
        await anyio.to_thread.run_sync(remove_files, deps, record.id)
    log.info("dataset deleted", dataset=record.id, name=record.name)
