"""`/v1/runs/{run}/events`: the events of a run, as server-sent events."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse

from services.contracts.events import RunEvent
from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses

router = APIRouter(prefix="/v1/runs", tags=["runs"])


class EventStream(StreamingResponse):
    """Server-sent events that are encoded already, which FastAPI's own response does not take."""

    media_type = "text/event-stream"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        # A proxy that collects answers before it passes them on would hold events back.
        at_once = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().init_headers(at_once | dict(headers or {}))


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "model": RunEvent,
        "description": "Server-sent events. The `data` of each is a RunEvent as JSON.",
    }
}
# FastAPI describes each answer besides JSON as a string.
DATA = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "object"}}}}}}


@router.get(
    "/{run}/events",
    operation_id="run_events_follow",
    summary="Follow a run",
    response_class=EventStream,
    responses={**responses(RUN_PROBLEMS), **STREAM},
    openapi_extra=DATA,
)
async def events(
    deps: Deps,
    record: RunDep,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern=r"^[0-9]{1,19}(-[0-9]{1,19})?$",
            description="The last event seen; only later ones come.",
        ),
    ] = None,
    newest: Annotated[
        int | None,
        Query(ge=0, le=1000, description="Of the events that there are, only so many come."),
    ] = None,
) -> Response:
    """All events of a run from its first (the store keeps about the newest 20,000), or after
    `Last-Event-ID`, or the `newest` ones; and then as they happen. Each
    has its kind as `event`, and a RunEvent as `data`. Ends when the run is
    over; ends early where Redis goes away: come back with the last id."""
    after = last_event_id or "0"
    if newest is not None and last_event_id is None:
        after = await deps.store.events.before_newest(record.id, newest)
    return EventStream(deps.followers.follow(record.id, after))
