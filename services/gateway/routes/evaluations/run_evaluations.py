"""`/v1/runs/{run}/evaluations`: evaluations of a run, their figures, and all answers."""

from functools import partial
from http import HTTPStatus
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field

from services.contracts.evaluation import AnsweredRow, EvaluationRecord, EvaluationState, record_of
from services.contracts.records import RunRecord
from services.evaluations import DamagedAnswers, Verdict, folder_of, read_page, read_result, results
from services.gateway.dependencies import RUN_PROBLEMS, Dependencies, Deps, RunDep
from services.gateway.paging import Cursor, Limit, Next, cursor_at, number_in, page_of
from services.http import Problem, responses
from services.store.unreadable import reading

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PROBLEMS: dict[int | str, str] = {**RUN_PROBLEMS, 404: "There is no such run, or evaluation of it"}


class RunEvaluations(BaseModel):
    """A page of the evaluations of a run."""

    run: str = Field(description="The run's id.")
    evaluations: list[EvaluationRecord] = Field(
        description="The newest step first; of one step in the order in which they were due."
    )
    next: Next


class AnswerFilter(BaseModel):
    """The answered rows of an evaluation that a request asks for."""

    limit: int = Field(20, ge=1, le=200, description="Rows of a page, at most.")
    cursor: Cursor = None
    verdict: Verdict | None = Field(
        None,
        description="Only rows whose answers are all `correct`, none of them (`wrong`), or some "
        "(`mixed`); or of which none could be scored (`unscored`).",
    )
    category: str | None = Field(None, description="Only of this category.")
    row: int | None = Field(None, ge=0, description="Only this row of the dataset.")


class Answers(BaseModel):
    """A page of the answered rows of an evaluation, in the dataset's order."""

    evaluation: EvaluationRecord = Field(description="Which evaluation.")
    rows: list[AnsweredRow] = Field(description="Each with its answers.")
    total: int = Field(
        description="Rows that match. While the evaluation is open: of those that are stored, "
        "which is a few seconds later than answered."
    )
    next: Next


@router.get(
    "/{run}/evaluations",
    operation_id="run_evaluations_list",
    summary="Evaluations",
    responses=responses(RUN_PROBLEMS),
)
async def evaluations(
    deps: Deps, record: RunDep, limit: Limit = 200, cursor: Cursor = None
) -> RunEvaluations:
    """All evaluations of a run, page by page: those that have ended with their figures, the open
    one with its progress, and those that wait."""
    listed = await evaluations_of(deps, record)
    page, following = page_of(listed, _newest_step_first, limit, cursor)
    return RunEvaluations(run=record.id, evaluations=page, next=following)


def _newest_step_first(evaluation: EvaluationRecord) -> tuple[int, float, str]:
    return -evaluation.step, evaluation.asked, evaluation.id


async def evaluations_of(deps: Dependencies, record: RunRecord) -> list[EvaluationRecord]:
    """Return all evaluations of a run, the newest step first."""
    # Redis first: an evaluation that ends meanwhile has its result before it leaves Redis.
    unfinished = await _unfinished(deps, record.id)
    ended = await anyio.to_thread.run_sync(lambda: list(results(deps.volume.root, record.id)))
    known = {result.id for result in ended}
    listed = [*ended, *(waiting for waiting in unfinished if waiting.id not in known)]
    return sorted(listed, key=_newest_step_first)


async def _evaluation(
    deps: Deps,
    record: RunDep,
    evaluation: Annotated[
        str,
        Path(
            description="Its id, like `000020-gsm8k`.",
            pattern=r"^[0-9]{6,12}-[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        ),
    ],
) -> EvaluationRecord:
    result = await _result(deps, record.id, evaluation)
    if result is not None:
        return result
    listed = await evaluations_of(deps, record)
    for candidate in listed:
        if candidate.id == evaluation:
            return candidate
    known = ", ".join(candidate.id for candidate in listed[:10]) or "none yet"
    raise Problem(
        HTTPStatus.NOT_FOUND, f"run {record.id} has no evaluation {evaluation!r}; it has {known}"
    )


EvaluationDep = Annotated[EvaluationRecord, Depends(_evaluation)]


@router.get(
    "/{run}/evaluations/{evaluation}",
    operation_id="run_evaluations_get",
    summary="One evaluation",
    responses=responses(PROBLEMS),
)
async def one_evaluation(evaluation: EvaluationDep) -> EvaluationRecord:
    """One evaluation with its figures, or its progress."""
    return evaluation


@router.get(
    "/{run}/evaluations/{evaluation}/answers",
    operation_id="evaluation_answers_list",
    summary="Answers of an evaluation",
    responses=responses(
        PROBLEMS | {409: "The beginning of an id that several runs have, or a file is damaged"}
    ),
)
async def answers(
    deps: Deps,
    record: RunDep,
    evaluation: EvaluationDep,
    wanted: Annotated[AnswerFilter, Query()],
) -> Answers:
    """Every answer with its prompt, reference answer, reward and verdict, page by page."""
    parts = None
    if evaluation.finished is None:
        standing = await deps.store.evaluations.standing(record.id)
        parts = next((entry.parts for entry in standing if entry.id == evaluation.id), None)
        # A waiting evaluation has no parts yet. If it has ended meanwhile, all parts count.
        if parts is None and await _result(deps, record.id, evaluation.id) is None:
            parts = 0
    folder = folder_of(deps.volume.root, record.id, evaluation.id)
    chosen = wanted.model_dump(exclude={"cursor"})
    after = number_in(wanted.cursor, -1)
    read = partial(read_page, folder, parts=parts, after=after, **chosen)
    try:
        shown = await anyio.to_thread.run_sync(read)
    except DamagedAnswers as error:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"the answers of evaluation {evaluation.id} of run {record.id} cannot be read: {error}",
        ) from None
    following = cursor_at((shown.rows[-1].row,)) if shown.more else None
    return Answers(evaluation=evaluation, rows=shown.rows, total=shown.total, next=following)


async def _result(deps: Deps, run: str, evaluation: str) -> EvaluationRecord | None:
    return await anyio.to_thread.run_sync(read_result, deps.volume.root, run, evaluation)


async def _unfinished(deps: Deps, run: str) -> list[EvaluationRecord]:
    """Return the evaluations in Redis, which have no result yet."""
    with reading(f"the evaluations of run {run}"):
        standing = {entry.id: entry for entry in await deps.store.evaluations.standing(run)}
        requests = await deps.store.evaluations.requests(run)
    records = []
    for request in requests:
        at = standing.get(request.id)
        # One that is done is open until its figures are there.
        state: EvaluationState = "open" if at else "waiting"
        record = record_of(run, request, state)
        records.append(record.model_copy(update={"answered": at.answered}) if at else record)
    return records
