"""`/v1/datasets`: upload, list, show, preview, delete."""

import shutil
import time
from http import HTTPStatus
from pathlib import PurePath
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile
from pydantic import BaseModel, Field

from services.contracts.config.rewards import RewardComponent
from services.contracts.records import DatasetRecord
from services.datasets import (
    ColumnMapping,
    DatasetReader,
    Format,
    Imported,
    KnownFile,
    SourceFile,
    import_in_child,
)
from services.datasets.shards import stem_of_shard
from services.gateway.dependencies import (
    DATASET_PROBLEMS,
    DatasetDep,
    Deps,
    users_of,
)
from services.gateway.mappings import read_mapping
from services.gateway.paging import Cursor, Limit, Next, cursor_at, number_in, page_of
from services.gateway.submission.verifier_check import check_named, check_upload
from services.http import CLIENT_GONE, Problem, responses, while_connected
from services.recovery.record_copies import forget_dataset, keep_copy, keep_dataset
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

IMPORTS = anyio.CapacityLimiter(2)
"""Uploads that are converted at once; each may take much memory."""
QUOTA = 4
"""How many times the largest upload the rows of one upload may take."""

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


class Uploaded(DatasetRecord):
    """A dataset, and how its file was read."""

    mapping: ColumnMapping | str = Field(
        description="The columns that were used, guesses made; or the name of the mapping."
    )
    left_over: list[str] = Field(
        description="Columns that are in neither prompt nor answer. Rows keep them for verifiers."
    )
    duplicates: int = Field(description="Rows with the prompt and answer of an earlier row.")
    added: bool = Field(description="False: a dataset of this name had these rows already.")
    notes: list[str] = Field(description="Guesses about how the files were read.")
    warnings: list[str] = Field(description="Probable mistakes, each with a count.")


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
                422: "A row or the mapping cannot be used; `detail` names the line",
                507: "The data volume is full, or cannot be written",
            }
        ),
    },
)
async def upload(
    deps: Deps,
    client: Request,
    response: Response,
    file: Annotated[
        list[UploadFile],
        File(
            description="JSON lines, CSV (with a header), Parquet, or a tar of JSON. Several files "
            "become one dataset, in their order."
        ),
    ],
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
) -> Uploaded | Response:
    """Convert uploaded files into a dataset. Uploading the same again changes nothing (200). Other
    rows under a name that exists are refused (409), and so is a mapping with other defaults."""
    files = [SourceFile(part.file, PurePath(part.filename or "upload").name) for part in file]
    chosen = name or _name_from([part.name for part in files])
    columns = read_mapping(mapping)
    if verifier is not None:
        await check_named(deps, verifier)
    quota = QUOTA * deps.settings.upload_limit

    async def convert() -> Imported:
        async with IMPORTS:
            return await import_in_child(deps.volume.root, files, chosen, format, columns, quota)

    while True:
        if (imported := await while_connected(client, convert())) is None:
            return Response(status_code=CLIENT_GONE)
        record = DatasetRecord(
            id=imported.id,
            name=chosen,
            rows=imported.segment.rows,
            created=time.time(),
            segments=[imported.segment],
            source=source or _source(files),
            defaults=columns.defaults if isinstance(columns, KnownFile) else None,
        )
        if (kept := await _added(deps, record)) is not None:
            break
    if kept.created != record.created:
        response.status_code = HTTPStatus.OK
    else:
        log.info("dataset added", dataset=record.id, name=chosen, rows=record.rows)
        deps.counting.begin(kept)
    rewards = [RewardComponent(verifier=verifier)] if verifier else []
    rewards += kept.defaults.rewards if kept.defaults else []
    unread = await check_upload(deps, kept, rewards)
    if rewards and not unread:
        names = " and ".join(dict.fromkeys(repr(reward.verifier) for reward in rewards))
        imported.notes.append(f"all references can be read by verifier {names}")
    return Uploaded(
        **kept.model_dump(),
        mapping=imported.mapping,
        left_over=imported.left_over,
        duplicates=imported.duplicates,
        added=kept.created == record.created,
        notes=imported.notes,
        warnings=imported.warnings + unread,
    )


async def _added(deps: Deps, record: DatasetRecord) -> DatasetRecord | None:
    """Return the record that holds the name now, or None if the same dataset was deleted since the
    file was written. Raises Problem 409 if the record has other rows or other defaults."""
    async with deps.volume.dataset_lock():
        path = deps.volume.path(record.segments[0].file)
        if not await anyio.to_thread.run_sync(path.exists):
            return None
        kept = await deps.store.datasets.add(record)
        if kept.damage:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"{kept.damage}: delete it first (`headrace datasets rm {kept.id}`)",
            )
        if kept.id != record.id:
            await anyio.to_thread.run_sync(_remove, deps, record.id)
            raise Problem(
                HTTPStatus.CONFLICT,
                f"there is a dataset {record.name!r} with other rows (id {kept.id}): choose "
                f"another name, delete it first (`headrace datasets rm {record.name}`), or append "
                "to it with POST /v1/prompts",
            )
        if kept.defaults != record.defaults:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"dataset {kept.name!r} has these rows already, {_way(kept)}, and this upload "
                f"comes {_way(record)}: delete it first "
                f"(`headrace datasets rm {kept.name}`), or choose another name",
            )
        await keep_copy(keep_dataset, deps.volume.root, kept)
        return kept


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
        await anyio.to_thread.run_sync(_remove, deps, record.id)
    log.info("dataset deleted", dataset=record.id, name=record.name)


def _remove(deps: Deps, dataset: str) -> None:
    shutil.rmtree(deps.volume.path(f"datasets/{dataset}"), ignore_errors=True)


def _way(record: DatasetRecord) -> str:
    """Describe how the rows are asked and scored, for a refusal that tells two ways apart."""
    if record.defaults is None:
        return "without a template and a verifier of its own"
    verifiers = " and ".join(repr(reward.verifier) for reward in record.defaults.rewards)
    return f"with the template {record.defaults.template!r} and the verifier {verifiers}"


def _source(files: list[SourceFile]) -> str:
    """Describe the uploaded files: the name of the first, and the number of the others."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].name[:150]}{more}"


def _name_from(filenames: list[str]) -> str:
    """Return the first file's name without its suffix. The names of several files lose their
    numbers."""
    stem = (stem_of_shard(filenames[0]) if len(filenames) > 1 else filenames[0]).split(".")[0]
    stem = stem.strip()
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)
    return kept.lstrip("._-")[:100] or "dataset"
