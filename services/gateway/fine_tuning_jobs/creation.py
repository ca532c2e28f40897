"""Makes the run of a fine-tuning job: copies the rows into datasets, and submits the run.

Each part is done once, however often a gateway dies on the way: the record of a new job is written
first, datasets have their ids from their rows, and the run has its id from the job's. A job that a
dead gateway has left is finished by any gateway.
"""

import asyncio
import re
import tempfile
import time
from http import HTTPStatus
from typing import BinaryIO, cast

import anyio.to_thread
from redis.exceptions import RedisError

from headrace.config_keys import POLICY, text_at
from services.contracts.openai_models import read_fine_tuned_name
from services.contracts.records import DatasetRecord, RunRecord
from services.datasets import DatasetError, SourceFile
from services.gateway.callers import Caller
from services.gateway.dependencies import Dependencies, find_run
from services.gateway.idempotency import RequestTry
from services.gateway.openai_jobs.file_shelf import FileShelf
from services.gateway.openai_jobs.files import FieldError, FineTuningFile
from services.gateway.openai_jobs.job_config import RECIPES, JobFacts, planned, refused, run_name
from services.gateway.openai_jobs.job_requests import MAX_SEED, JobRequest, MethodType
from services.gateway.openai_jobs.job_rows import MAPPINGS, dataset_rows
from services.gateway.openai_jobs.job_shelf import JobShelf
from services.gateway.openai_jobs.jobs import NOTE, PREFIX, JobFailure, JobRecord
from services.gateway.openai_jobs.training_rows import BadRowError
from services.gateway.submission.dataset_creation import DatasetSource, create_dataset
from services.gateway.submission.model_check import Problems, check_models, positions_of
from services.gateway.submission.run_queueing import queue
from services.gateway.submission.run_submission import RunSubmission
from services.http import Problem
from services.models.path import run_named
from services.runtime.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS = 5.0
TAG = "openai"
SPILL = 1 << 20
"""Bytes of converted rows above which they are in a file."""


async def create_job(deps: Dependencies, caller: Caller, id: str, request: JobRequest) -> JobRecord:
    """Create a job with its run. With an id that is known, return its job. Raises FieldError for a
    request that cannot be used: nothing is kept then."""
    shelf = JobShelf(deps.settings.data)
    known = await anyio.to_thread.run_sync(shelf.get, id)
    if known is not None and known.request != request:
        raise FieldError(
            "",
            "this Idempotency-Key was sent with another request: take a new key for each request",
        )
    if known is None:
        record = await _new_record(deps, caller, id, request)
        await anyio.to_thread.run_sync(shelf.begin, record)
    return await finish_job(deps, id, forgets_refused=True)


async def _new_record(
    deps: Dependencies, caller: Caller, id: str, request: JobRequest
) -> JobRecord:
    files = {"training_file": request.training_file, "validation_file": request.validation_file}
    by_param: dict[str, FineTuningFile | None] = dict.fromkeys(files)
    shelf = FileShelf(deps.settings.data)
    for param, file in files.items():
        if file is not None:
            kept = await anyio.to_thread.run_sync(shelf.file, file)
            if kept is None or not caller.sees(kept.project):
                raise FieldError(param, f"there is no file {file[:80]!r}")
            by_param[param] = kept
    if request.validation_file == request.training_file:
        raise FieldError("validation_file", "is the training file: send other rows")
    training = by_param["training_file"]
    assert training is not None
    seed = int(id.removeprefix(PREFIX)[8:], 16) % MAX_SEED if request.seed is None else request.seed
    return JobRecord(
        id=id,
        created=time.time(),
        request=request,
        training=training,
        validation=by_param["validation_file"],
        seed=seed,
        submitter=caller.name,
        organization=caller.organization,
        project=caller.project,
    )


async def finish_job(deps: Dependencies, id: str, *, forgets_refused: bool = False) -> JobRecord:
    """Queue the run of a new job, and return the job. A job that cannot have a run has an error
    then, or with `forgets_refused` is forgotten, and FieldError is raised."""
    shelf = JobShelf(deps.settings.data)
    async with shelf.lock(id):
        record = await anyio.to_thread.run_sync(shelf.new, id)
        if record is None:
            settled = await anyio.to_thread.run_sync(shelf.get, id)
            if settled is None:
                raise FieldError("", "the job was refused: send it again with another key")
            return settled
        try:
            record = await _with_run(deps, shelf, record)
        except FieldError as error:
            log.info("a fine-tuning job is refused", job=id, reason=str(error)[:300])
            if forgets_refused:
                await anyio.to_thread.run_sync(shelf.forget, id)
                raise
            record = record.model_copy(update={"error": _error(error)})
        record = record.model_copy(update={"is_new": False})
        await anyio.to_thread.run_sync(shelf.settle, record)
        return record


def _error(error: FieldError) -> JobFailure:
    is_file = error.param in ("training_file", "validation_file")
    code = f"invalid_{error.param}" if is_file else "invalid_value"
    return JobFailure(code=code, message=str(error), param=error.param or None)


async def keep_finishing(deps: Dependencies) -> None:
    """Finish the jobs that a dead gateway has left, again and again, until cancelled."""
    shelf = JobShelf(deps.settings.data)
    while True:
        for id in await anyio.to_thread.run_sync(shelf.new_ids):
            try:
                await finish_job(deps, id)
            except (RedisError, OSError, Problem, FieldError) as error:
                log.warning("a fine-tuning job waits", job=id, reason=str(error)[:300])
            except Exception as error:
                log.exception("a fine-tuning job cannot be created", job=id, reason=repr(error))
        await asyncio.sleep(LOOK_SECONDS)


async def _with_run(deps: Dependencies, shelf: JobShelf, record: JobRecord) -> JobRecord:
    """Copy a job's rows, and queue its run. Raises FieldError."""
    request = record.request
    caller = Caller(record.submitter, "submit", "", "openai", record.project)
    path, positions = await _model(deps, caller, request)
    training = await _dataset(deps, request, record.training, "training_file")
    validation = None
    if record.validation is not None:
        validation = await _dataset(deps, request, record.validation, "validation_file")
    held_out = None if validation is None else validation.id
    facts = JobFacts(path, positions, training.id, training.rows, held_out)
    plan = planned(request, facts, record.seed)
    record = record.model_copy(update={"hyperparameters": plan.used})
    await anyio.to_thread.run_sync(shelf.begin, record)
    await _queued(deps, caller, record, plan.config)
    return record


async def _model(deps: Dependencies, caller: Caller, request: JobRequest) -> tuple[str, int | None]:
    """Return `model.path` of a job's run, and the model's longest sequence. Raises FieldError."""
    path = request.model
    if (named := read_fine_tuned_name(path)) is not None:
        run, step = named
        path = f"run:{run}" if step is None else f"run:{run}@{step}"
    problems: Problems = []
    if caller.project is not None and (made_by := run_named(path)) is not None:
        try:
            made = await find_run(deps, made_by)
        except Problem as problem:
            raise FieldError("model", problem.detail) from None
        if not caller.sees(made.project):
            raise FieldError("model", f"there is no run {made_by[:80]!r}")
    raw, models = await check_models(deps, {"type": "sft", "model": {"path": path}}, problems)
    if problems:
        raise FieldError("model", f"{request.model[:100]!r} cannot be used: {problems[0][1]}")
    return text_at(raw, POLICY) or path, positions_of(models.policy)


async def _dataset(
    deps: Dependencies, request: JobRequest, file: FineTuningFile, param: str
) -> DatasetRecord:
    """Return the dataset of a file's rows, which is made once. Raises FieldError."""
    method = request.method.type

    name = _dataset_name(file, method)
    asked = DatasetSource(name, "jsonl", MAPPINGS[method], None, file.filename)
    with tempfile.SpooledTemporaryFile(SPILL, dir=str(deps.settings.data / "openai")) as spooled:
        rows = cast(BinaryIO, spooled)
        try:
            await anyio.to_thread.run_sync(_copy_rows, deps, file, method, rows)
            made = await create_dataset(deps, None, [SourceFile(rows, f"{name}.jsonl")], asked)
        except (BadRowError, DatasetError) as error:
            raise FieldError(param, f"{file.filename}: {error}") from None
        except FileNotFoundError:
            message = f"file {file.id} was deleted before its rows were copied"
            raise FieldError(param, message) from None
        except Problem as problem:
            if problem.status != HTTPStatus.CONFLICT:
                raise
            raise FieldError(param, problem.detail) from None
    assert made is not None
    return made


def _copy_rows(
    deps: Dependencies, file: FineTuningFile, method: MethodType, rows: BinaryIO
) -> None:
    """Write the rows of a file as those of a dataset. Raises BadRowError, FileNotFoundError."""
    content = FileShelf(deps.settings.data).open(file.id)
    if content is None:
        raise FileNotFoundError(file.id)
    with content:
        for line in dataset_rows(content, method):
            rows.write(line)
    rows.seek(0)


def _dataset_name(file: FineTuningFile, method: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", file.filename.rpartition(".")[0] or file.filename)
    kept = stem.lstrip("._-")[:60] or "rows"
    return f"{kept}-{file.id.removeprefix('file-')[:12]}-{method}"


async def _queued(
    deps: Dependencies, caller: Caller, record: JobRecord, config: dict[str, object]
) -> RunRecord:
    """Queue a job's run, once. Raises FieldError."""
    request, method = record.request, record.request.method.type
    submission = RunSubmission(
        recipe=RECIPES[method],
        config=config,
        name=run_name(request, record.training.filename),
        tags=[TAG, method],
        notes=f"{NOTE}{record.id}",
    )
    seed = record.id.removeprefix(PREFIX)
    try:
        return await queue(deps, submission, caller, RequestTry(seed, is_repeated=True))
    except Problem as problem:
        if problem.status not in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.CONFLICT):
            raise
        problems = [(each.path, each.message) for each in problem.problems]
        raise refused(request, problems, problem.detail) from None
