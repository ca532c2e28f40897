"""`/v1/runs/{run}/events`: what happens in a run, as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent
from redis.exceptions import RedisError

from services.gateway.access import RUN_PROBLEMS, AccessDep, RunDep
from services.http import responses
from services.logs import get_logger

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
    given: AccessDep,
    record: RunDep,
    last_event_id: Annotated[
        str | None,
        Header(pattern=r"^\d+(-\d+)?$", description="The last event seen; only later ones come."),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """All events of a run from its first, or after `Last-Event-ID`, and then as they happen. Each
    has its kind as `event`, and `{"id", "time", "kind", "data"}` as `data`. Ends when the run is
    over; ends early where Redis goes away: come back with the last id."""
    after = last_event_id or "0"
    try:
        while True:
            # Looked up before the read: what happened up to the end of a run is read after it.
            current = await given.store.runs.get(record.id)
            over = current is None or current.state.final
            batch = await given.store.events.read(record.id, after, wait=0 if over else WAIT)
            for event in batch:
                after = event.id
                yield ServerSentEvent(id=event.id, event=event.kind, data=event)
            if over and not batch:
                return
    except RedisError as error:
        log.warning("events interrupted", run=record.id, error=type(error).__name__)
