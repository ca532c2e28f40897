"""`/v1/runs/{run}/logs` and `/v1/logs`: what the processes of a run and of the installation log."""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.logs import Level, LogLine
from services.gateway.dependencies import RUN_PROBLEMS, Dependencies, Deps, RunDep
from services.gateway.log_pages import (
    BEGIN,
    LogSource,
    lines_after,
    newest_lines,
    sources_of,
    wanted_by,
)
from services.gateway.paging import Cursor, Limit, Next, cursor_at, place_in, unknown_cursor
from services.http import responses

router = APIRouter(tags=["runs"])

ID = re.compile(r"\d{1,15}-\d{1,15}", re.ASCII)

Process = Annotated[
    str | None,
    Query(
        max_length=300,
        description="Only of this process, or of all of its kind: `learner`, `rollout`, `vllm`, "
        "`gateway`, `reward`.",
        examples=["learner", "vllm/node7-3fa9c1"],
    ),
]
Newest = Annotated[
    int | None,
    Query(ge=0, le=1000, description="Of the lines that there are, only so many of the newest."),
]
Least = Annotated[Level, Query(description="Only of this level and above.")]


class LogPage(BaseModel):
    """A page of a log."""

    logs: list[LogLine] = Field(description="Oldest first.")
    next: Next
    later: str = Field(
        description="To follow the log, send this as `cursor` after a moment: lines that come "
        "later stand behind it."
    )


@router.get(
    "/v1/runs/{run}/logs",
    operation_id="run_logs_list",
    summary="Read the log of a run",
    responses=responses(RUN_PROBLEMS),
)
async def of_run(
    deps: Deps,
    record: RunDep,
    process: Process = None,
    level: Least = "debug",
    newest: Newest = None,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> LogPage:
    """List what the learner's ranks, the rollout workers and their vLLM logged while they worked on
    the run, with warnings of the gateways and the reward service from that time. The newest 5,000
    lines of a run are kept, about, for a week after its last line. Lines of a page stand in the
    order of their arrival."""
    sources = sources_of(record)
    return await _page(deps, sources, process, level, newest, limit, cursor)


@router.get("/v1/logs", operation_id="logs_list", summary="Read the log of the installation")
async def of_installation(
    deps: Deps,
    process: Process = None,
    level: Least = "debug",
    newest: Newest = None,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> LogPage:
    """List what the gateways and the reward service logged, and what learners and workers logged
    while their pool had no run. The newest 10,000 lines are kept, about."""
    return await _page(deps, sources_of(None), process, level, newest, limit, cursor)


async def _page(
    deps: Dependencies,
    sources: Sequence[LogSource],
    process: str | None,
    level: Level,
    newest: int | None,
    limit: int,
    cursor: str | None,
) -> LogPage:
    wanted = wanted_by(process, level)
    if newest is not None and cursor is None:
        read = await newest_lines(deps.store, sources, wanted, newest)
    else:
        places = [BEGIN] * len(sources) if cursor is None else _ids_in(cursor, len(sources))
        read = await lines_after(deps.store, sources, wanted, places, limit)
    later = cursor_at(tuple(read.places))
    return LogPage(logs=read.lines, next=later if read.has_more else None, later=later)


def _ids_in(cursor: str, count: int) -> list[str]:
    """Return the ids of lines in a cursor, one a stream. Raises Problem 422."""
    ids = [id for id in place_in(cursor) if isinstance(id, str) and ID.fullmatch(id)]
    if len(ids) != count:
        raise unknown_cursor(cursor)
    return ids
