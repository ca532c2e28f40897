"""`/v1/runs/{run}/logs` and `/v1/logs`: what the processes of a run and of the installation log."""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.logs import Level, LogLine
from services.gateway.dependencies import RUN_PROBLEMS, Dependencies, Deps, RunDep
from services.gateway.log_pages import (
    LogSource,
    lines_after,
    newest_lines,
    order,
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
    lines of a run are kept, about, for a week after its last line. Arrival orders lines."""
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
    id = "0-0" if cursor is None else _id_in(cursor)
    # Read first: what comes while the lines are read is behind it.
    end = await deps.store.process_logs.newest_id([source.run for source in sources])
    if newest is not None and cursor is None:
        lines, has_more = await newest_lines(deps.store, sources, wanted, newest), False
    else:
        lines, has_more = await lines_after(deps.store, sources, wanted, id, limit)
    seen = [id, *(line.id for line in lines[-1:]), *([] if has_more else [end])]
    later = cursor_at((max(seen, key=order),))
    return LogPage(logs=lines, next=later if has_more else None, later=later)


def _id_in(cursor: str) -> str:
    """Return the id of a line in a cursor. Raises Problem 422."""
    place = place_in(cursor)
    if len(place) != 1 or not isinstance(place[0], str) or not ID.fullmatch(place[0]):
        raise unknown_cursor(cursor)
    return place[0]
