"""`/v1/runs/{run}/evaluations/{evaluation}/rows`: the rows of a held-out set over the steps of a
run."""

from pathlib import Path
from statistics import fmean
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.evaluation import EvaluationRecord
from services.evaluations import DamagedAnswers, folder_of, measured
from services.evaluations.comparison import Metric
from services.evaluations.over_steps import Change, RowValues, changes, row_values
from services.gateway.dependencies import Deps, RunDep
from services.gateway.paging import Cursor, Next, number_in, page_of
from services.gateway.routes.evaluations.run_evaluations import (
    PROBLEMS,
    EvaluationDep,
    evaluations_of,
)
from services.http import Problem, responses

router = APIRouter(prefix="/v1/runs", tags=["runs"])

MOST_STEPS = 40
"""Evaluations that are shown, at most. If there are more, the newest up to the one asked for."""


class StepOfSet(BaseModel):
    """An evaluation of the set, against the one before."""

    evaluation: str = Field(description="Its id.")
    step: int = Field(description="The step whose version answered.")
    value: float | None = Field(description="Its mean over its rows.")
    better: int = Field(description="Rows with a higher value than at the evaluation before.")
    worse: int = Field(description="Rows with a lower value.")
    p: float | None = Field(
        description="The probability of a division at least as uneven by chance: the exact sign "
        "test. Null for the first, and without a common row."
    )


class RowOverSteps(BaseModel):
    """A row of the set."""

    row: int = Field(description="Index of the dataset row.")
    category: str | None = Field(description="Its category.")
    values: list[float | None] = Field(
        description="Its value at each of `steps`; null where it has no answer."
    )


class RowsOverSteps(BaseModel):
    """A page of the rows of a held-out set over the steps of a run."""

    metric: Metric = Field(
        description="What values are: the share of a row's answers that are correct (`accuracy`), "
        "or its mean reward, if verifiers only rate."
    )
    steps: list[StepOfSet] = Field(
        description=f"Ended evaluations of the set, oldest first: up to {MOST_STEPS}, the newest "
        "of which is the one asked for."
    )
    rows: list[RowOverSteps] = Field(description="By number.")
    total: int = Field(description="Rows that match.")
    next: Next


@router.get(
    "/{run}/evaluations/{evaluation}/rows",
    operation_id="evaluation_rows_list",
    summary="Rows over the steps of a run",
    responses=responses(
        PROBLEMS | {409: "The beginning of an id that several runs have, or a file is damaged"}
    ),
)
async def rows(
    deps: Deps,
    record: RunDep,
    evaluation: EvaluationDep,
    change: Annotated[
        Change | None,
        Query(
            description="Only rows whose last value is higher (`better`) or lower (`worse`) than "
            "their first; that went up and down (`unsteady`); or that stayed (`steady`)."
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Rows of a page, at most.")] = 200,
    cursor: Cursor = None,
) -> RowsOverSteps:
    """Which rows turned right and which turned wrong between the evaluations of a set, up to this
    evaluation. The same rows are compared, so a small change stands out."""
    number_in(cursor, 0)
    ended = [
        each
        for each in await evaluations_of(deps, record)
        if each.name == evaluation.name
        and each.finished is not None
        and each.step <= evaluation.step
    ]
    shown = ended[:MOST_STEPS][::-1]
    root = deps.volume.root
    folders = [folder_of(root, record.id, each.id) for each in shown]
    try:
        metric, known = await anyio.to_thread.run_sync(_read, folders)
    except DamagedAnswers as error:
        detail = f"the evaluations of run {record.id} cannot be compared: {error}"
        raise Problem(409, detail) from None
    matching = [row for row in known if change is None or row.has(change)]
    page, following = page_of(matching, lambda row: (row.row,), limit, cursor)
    return RowsOverSteps(
        metric=metric,
        steps=[_step(each, known, at) for at, each in enumerate(shown)],
        rows=[RowOverSteps(row=row.row, category=row.category, values=row.values) for row in page],
        total=len(matching),
        next=following,
    )


def _read(folders: list[Path]) -> tuple[Metric, list[RowValues]]:
    return row_values([measured(folder) for folder in folders])


def _step(evaluation: EvaluationRecord, rows: list[RowValues], at: int) -> StepOfSet:
    values = [row.values[at] for row in rows]
    known = [value for value in values if value is not None]
    better, worse, p = changes(rows, at)
    return StepOfSet(
        evaluation=evaluation.id,
        step=evaluation.step,
        value=fmean(known) if known else None,
        better=better,
        worse=worse,
        p=p,
    )
