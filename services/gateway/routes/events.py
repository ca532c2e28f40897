"""`/v1/runs/{run}/events`: the events of a run, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from redis.exceptions import RedisError

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/runs", tags=["runs"])

WAIT = 5.0
"""Seconds to wait for an event before looking whether the run is over."""

log = get_logger(__name__)


@router.get(
    "/{run}/events",
    summary="Follow a run",
    response_class=EventSourceResponse,
    responses=responses(RUN_PROBLEMS),
)
async def events(
    deps: Deps,
    record: RunDep,
    last_event_id: Annotated[
        str | None,
        Header(pattern=r"^\d+(-\d+)?$", description="The last event seen; only later ones come."),
    ] = None,
    newest: Annotated[
        int | None,
        Query(ge=0, le=1000, description="Of the events that there are, only so many come."),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """All events of a run from its first (the store keeps about the newest 20,000), or after
    `Last-Event-ID`, or the `newest` ones; and then as they happen. Each
    has its kind as `event`, and `{"id", "time", "kind", "data"}` as `data`. Ends when the run is
    over; ends early where Redis goes away: come back with the last id."""
    after = last_event_id or "0"
    try:
        if newest is not None and last_event_id is None:
            after = await deps.store.events.before_newest(record.id, newest)
        while True:
            # Looked up before the read: what happened up to the end of a run is read after it.
            current = await deps.store.runs.get(record.id)
            over = current is None or current.state.final
            batch = await deps.store.events.read(record.id, after, wait=0 if over else WAIT)
            for event in batch:
                after = event.id
                yield ServerSentEvent(id=event.id, event=event.kind, data=event)
            if over and not batch:
                return
    except RedisError as error:
        log.warning("events interrupted", run=record.id, error=type(error).__name__)
