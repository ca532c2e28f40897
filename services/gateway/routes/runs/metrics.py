"""`/v1/runs/{run}/metrics`: the metrics of a run by step."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.gateway.paging import Cursor, Next, cursor_at, number_in
from services.http import responses
from services.volume.run_files import METRICS, read_metrics

router = APIRouter(prefix="/v1/runs", tags=["runs"])


class RunMetrics(BaseModel):
    """Metrics of a run by step."""

    run: str = Field(description="The run's id.")
    metrics: list[dict[str, Any]] = Field(
        description="One object a step and one an evaluation, by the names of docs/metrics.md."
    )
    next: Next


@router.get(
    "/{run}/metrics",
    operation_id="run_metrics_list",
    summary="Metrics of a run",
    responses=responses(RUN_PROBLEMS),
)
async def metrics(
    deps: Deps,
    record: RunDep,
    name: Annotated[
        list[str] | None,
        Query(description="Only rows with one of these metrics, and of them only these."),
    ] = None,
    after_step: Annotated[int, Query(description="Only steps after this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Rows of a page, at most.")] = 1000,
    cursor: Cursor = None,
) -> RunMetrics:
    """List the learner's metrics of each step in the order of writing, page by page. An evaluation
    may come after steps that were trained meanwhile."""
    path = deps.volume.path(f"runs/{record.id}/{METRICS}")
    rows, at = await anyio.to_thread.run_sync(
        read_metrics, path, set(name or ()), after_step, limit, number_in(cursor, 0)
    )
    following = None if at is None else cursor_at((at,))
    return RunMetrics(run=record.id, metrics=rows, next=following)
