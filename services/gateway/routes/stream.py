"""`/v1/stream`: what changes, as server-sent events: runs, events of named runs, workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field

from services.contracts.events import RunEvent
from services.contracts.records import RunSummary, WorkerRecord
from services.gateway.dependencies import RUN_PROBLEMS, Deps, find_run
from services.gateway.routes.runs.events import DATA, EventStream
from services.http import responses

router = APIRouter(tags=["runs"])

MOST_RUNS = 100
"""Runs that a stream may name: their places are in each message's id."""


class ChangedRuns(BaseModel):
    """The data of a `runs` message."""

    runs: list[RunSummary] = Field(description="The runs that have changed, as lists show them.")
    deleted: list[str] = Field(description="Ids of runs that were deleted.")


class ChangedWorkers(BaseModel):
    """The data of a `workers` message."""

    workers: list[WorkerRecord] = Field(description="All workers, as `GET /v1/workers` lists them.")


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ChangedRuns | RunEvent | ChangedWorkers,
        "description": "Server-sent events. The `data` of each is JSON: ChangedRuns of `runs`, "
        "RunEvent of `event`, ChangedWorkers of `workers`, `{}` of `reset`.",
    }
}


@router.get(
    "/v1/stream",
    summary="Follow everything",
    operation_id="changes_follow",
    response_class=EventStream,
    responses={**responses(RUN_PROBLEMS), **STREAM},
    openapi_extra=DATA,
)
async def stream(
    deps: Deps,
    run: Annotated[
        list[str],
        Query(max_length=MOST_RUNS, description="Runs whose events come too, by id or name."),
    ] = [],  # noqa: B006 - FastAPI copies it
    last_event_id: Annotated[
        str | None,
        Header(description="The id of the last message seen: what came after it comes."),
    ] = None,
) -> EventStream:
    """Tell what changes from now on, or after `Last-Event-ID`, without an end.

    - `runs`: the runs that have changed and the ids of deleted ones, at most once a second.
    - `event`: an event of a run that `run` names.
    - `workers`: all workers, when one has changed, at most every 2 s.
    - `reset`: changes may be missing, because the place of `Last-Event-ID` is gone, this client was
      too slow, or Redis was away. Load the lists again; the stream goes on.

    Open the stream first and load lists then: nothing is lost between the two. Each message's `id`
    is the place of this client, for any gateway. A comment comes after 15 s without a message."""
    named = {
        asked: asked if deps.index.get(asked) else (await find_run(deps, asked)).id for asked in run
    }
    listener = await deps.stream.listen(list(dict.fromkeys(named.values())), last_event_id)
    return EventStream(deps.stream.messages(listener))
