"""`/v1/evaluations`: evaluate any model on a dataset; and the comparison of two evaluations.

Such an evaluation is a run of zero steps (`services/gateway/evaluation_submission.py`). Its id is
a run's, and it has events, cancelling, deletion and answers as a run has.
"""

from http import HTTPStatus
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.wording import counted, predicate
from services.contracts.evaluation import EvaluationRecord
from services.contracts.records import RunRecord, RunSummary
from services.evaluations import folder_of, measured, results
from services.evaluations.comparison import Comparison, compare
from services.gateway.dependencies import (
    DATASET_PROBLEMS,
    RUN_PROBLEMS,
    CallerDep,
    Dependencies,
    Deps,
    RequestTryDep,
    RunDep,
    find_dataset,
    find_run,
)
from services.gateway.paging import Cursor, Next
from services.gateway.routes.evaluations.run_evaluations import EvaluationDep, evaluations_of
from services.gateway.routes.runs.runs import detailed, page_of_runs
from services.gateway.submission.evaluation_submission import (
    EvaluationSubmission,
    differing,
    evaluation_run,
    is_evaluation,
    resolve_model,
)
from services.gateway.submission.run_queueing import queue
from services.http import Problem, responses

router = APIRouter(tags=["evaluations"])

MOST = 1000


class ModelEvaluation(BaseModel):
    """An evaluation of a model: its run and its progress."""

    run: RunSummary = Field(description="Its run, of zero steps; its id names the evaluation.")
    model: str = Field(description="What is evaluated, as `model.path`.")
    evaluation: EvaluationRecord | None = Field(
        description="Its progress, and once it is done its figures. Null: it has not begun."
    )


class ModelEvaluations(BaseModel):
    """A page of evaluations of models, newest first."""

    evaluations: list[ModelEvaluation] = Field(description="Each with its progress or figures.")
    next: Next


class EvaluationComparison(BaseModel):
    """One evaluation against another, row by row."""

    evaluation: EvaluationRecord = Field(description="This one.")
    against: EvaluationRecord = Field(description="The other one.")
    comparison: Comparison = Field(
        description="Means, their difference with its interval at 95 %, a paired test, and the "
        "rows that changed, the largest differences first."
    )
    better: int = Field(description="Rows on which this one is better.")
    worse: int = Field(description="Rows on which the other one is better.")
    differ: list[str] = Field(
        description="Options in which the two differ besides the model: then the difference is "
        "not the model's alone."
    )


@router.post(
    "/v1/evaluations",
    status_code=HTTPStatus.CREATED,
    operation_id="evaluations_create",
    summary="Evaluate a model",
    responses=responses(
        DATASET_PROBLEMS
        | {
            404: "There is no such dataset, run or evaluation",
            409: "The beginning of an id that several runs have",
            422: "The model or an option cannot be used; `problems` lists everything",
        }
    ),
)
async def evaluate(
    deps: Deps, asked: EvaluationSubmission, caller: CallerDep, request_try: RequestTryDep
) -> ModelEvaluation:
    """Queue the evaluation of a model on a dataset by the workers of a pool. It waits for its turn
    as a run does. Whatever process dies meanwhile, each row is answered once."""
    dataset = await find_dataset(deps, asked.dataset)
    like = _checked(await find_run(deps, asked.like)) if asked.like else None
    path, made_by = await resolve_model(deps, asked.model)
    record = await queue(
        deps, evaluation_run(asked, path, dataset, made_by, like), caller, request_try
    )
    return ModelEvaluation(run=record, model=record.config["model"]["path"], evaluation=None)


@router.get(
    "/v1/evaluations", operation_id="evaluations_list", summary="List evaluations of models"
)
async def list_all(
    deps: Deps,
    limit: Annotated[int, Query(ge=1, le=200, description="Entries of a page, at most.")] = 50,
    cursor: Cursor = None,
) -> ModelEvaluations:
    """List the evaluations that `POST /v1/evaluations` started, newest first, page by page."""
    runs, following = await page_of_runs(
        deps, limit, cursor, [lambda run: is_evaluation(run.summary)]
    )
    records = [await deps.store.runs.get(run.id) for run in runs]
    views = [await _view(deps, run) for run in records if run]
    return ModelEvaluations(evaluations=views, next=following)


@router.get(
    "/v1/evaluations/{run}",
    operation_id="evaluations_get",
    summary="Show an evaluation of a model",
    responses=responses(RUN_PROBLEMS),
)
async def show(deps: Deps, record: RunDep) -> ModelEvaluation:
    """One of them: its state, its progress, its figures. Its answers are those of its run
    (`GET /v1/runs/RUN/evaluations/ID/answers`)."""
    return await _view(deps, _checked(record))


@router.get(
    "/v1/runs/{run}/evaluations/{evaluation}/comparison",
    operation_id="run_evaluations_compare",
    summary="Compare two evaluations",
    responses=responses(
        RUN_PROBLEMS
        | {
            404: "There is no such run, or evaluation of it",
            409: "One of the two is not done",
            422: "The two are on different datasets, or have no row in common",
        }
    ),
)
async def comparison(
    deps: Deps,
    record: RunDep,
    evaluation: EvaluationDep,
    against: Annotated[
        str,
        Query(
            min_length=1,
            description="The other one: `RUN/ID`, or a run for its newest evaluation on the same "
            "dataset.",
        ),
    ],
    limit: Annotated[int, Query(ge=0, le=MOST, description="Changed rows, at most.")] = 50,
) -> EvaluationComparison:
    """Compare by row: with one answer a row McNemar's exact test, otherwise a sign-flip permutation
    test."""
    reference, _, id = against.partition("/")
    other_run = await find_run(deps, reference)
    other = await _other(deps, other_run, id, evaluation)
    _done(evaluation)
    if evaluation.dataset != other.dataset:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{evaluation.id} of run {record.id} is on dataset {evaluation.dataset}, {other.id} of "
            f"run {other_run.id} on {other.dataset}: compare two on one dataset",
        )

    if not _of_same_rows(evaluation, other):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{evaluation.id} of run {record.id} is on dataset {evaluation.dataset} "
            f"({evaluation.dataset_id}), {other.id} of run {other_run.id} on another one of that "
            f"name ({other.dataset_id}): evaluate both on the one that is there now",
        )

    def compared() -> Comparison:
        root = deps.volume.root
        return compare(
            measured(folder_of(root, record.id, evaluation.id)),
            measured(folder_of(root, other_run.id, other.id)),
        )

    try:
        result = await anyio.to_thread.run_sync(compared)
    except ValueError as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    return EvaluationComparison(
        evaluation=evaluation,
        against=other,
        comparison=result.first(limit),
        better=result.better,
        worse=result.worse,
        differ=differing(record.config, other_run.config, evaluation, other),
    )


async def _other(
    deps: Dependencies, run: RunRecord, id: str, evaluation: EvaluationRecord
) -> EvaluationRecord:
    """Return the evaluation to compare with. Raises Problem (404, 409)."""
    ended = await anyio.to_thread.run_sync(lambda: list(results(deps.volume.root, run.id)))
    if id:
        matching = [candidate for candidate in ended if candidate.id == id]
    else:
        named = [candidate for candidate in ended if candidate.dataset == evaluation.dataset]
        # An evaluation on another dataset of this name is compared only to report the difference.
        same = [candidate for candidate in named if _of_same_rows(candidate, evaluation)]
        matching = same or named
    if not matching:
        known = await evaluations_of(deps, run)
        listed = ", ".join(f"{candidate.id} ({candidate.state})" for candidate in known) or "none"
        what = repr(id) if id else f"on dataset {evaluation.dataset} that is over"
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"run {run.name} ({run.id}) has no evaluation {what}; it has {listed}",
        )
    _done(matching[-1])
    return matching[-1]


def _of_same_rows(evaluation: EvaluationRecord, other: EvaluationRecord) -> bool:
    """Return False if two datasets of one name are known to differ."""
    return (
        None in (evaluation.dataset_id, other.dataset_id)
        or evaluation.dataset_id == other.dataset_id
    )


def _done(evaluation: EvaluationRecord) -> None:
    """Raise Problem 409 unless all rows of the evaluation are answered."""
    if evaluation.state != "done":
        raise Problem(
            HTTPStatus.CONFLICT,
            f"evaluation {evaluation.id} of run {evaluation.run} {predicate(evaluation.state)} "
            f"with {evaluation.answered} of {counted(evaluation.rows, 'row')}: compare it once it "
            "is done",
        )


def _checked(record: RunRecord) -> RunRecord:
    if not is_evaluation(record):
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"run {record.name} ({record.id}) trains: its evaluations are at "
            f"/v1/runs/{record.id}/evaluations",
        )
    return record


async def _view(deps: Dependencies, record: RunRecord) -> ModelEvaluation:
    (record,) = await detailed(deps, [record])
    listed = await evaluations_of(deps, record)
    return ModelEvaluation(
        run=record,
        model=(record.config.get("model") or {}).get("path", ""),
        evaluation=listed[0] if listed else None,
    )
