"""Reads what has become of a fine-tuning job: events, checkpoints and metrics of its run."""

from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread

from services.contracts.records import RunRecord
from services.gateway.dependencies import Dependencies
from services.gateway.openai_jobs.file_shelf import FileShelf
from services.gateway.openai_jobs.files import FieldError
from services.gateway.openai_jobs.job_events import (
    PREFIX,
    JobEvent,
    events_of,
    first_events,
    run_event_id,
)
from services.gateway.openai_jobs.jobs import (
    RESULT_COLUMNS,
    JobCheckpoint,
    JobRecord,
    checkpoint_id,
    metrics_of,
    results_csv,
)
from services.volume.kept_checkpoints import kept_checkpoints
from services.volume.run_files import METRICS, read_metrics

PIECE = 200
"""Events that are read at once."""
MOST_ROWS = 1_000_000
RESULTS = "step_metrics.csv"
TOKENS = {"train/tokens", "throughput/tokens_per_second", "time/step"}
SHOWN = TOKENS | {name for names in RESULT_COLUMNS.values() for name in names.values() if name}
"""Metrics of a job."""


async def newest_events(
    deps: Dependencies, record: JobRecord, run: RunRecord | None, after: str | None, count: int
) -> list[JobEvent]:
    """Return up to `count` events that came before the event `after`, the newest first. Raises
    FieldError for an unknown event."""
    earliest = list(reversed(first_events(record)))
    page: list[JobEvent] = []
    is_behind = after is None

    def add(events: list[JobEvent]) -> None:
        nonlocal is_behind
        for event in events:
            if is_behind:
                page.append(event)
            is_behind = is_behind or event.id == after

    until = None if after is None or not after.startswith(PREFIX) else run_event_id(after)
    if run is not None and not (until or "").startswith("0-"):
        while len(page) < count:
            # The first event of a piece is the last of the one before.
            events = await _read_back(deps, run.id, until)
            for event in events[:PIECE]:
                add(list(reversed(list(events_of(record, event, run.max_steps)))))
            if len(events) <= PIECE:
                break
            until = events[PIECE].id
    if len(page) < count:
        add(earliest)
    if not is_behind:
        raise FieldError("after", f"there is no event {str(after)[:80]!r}")
    return page[:count]


async def _read_back(deps: Dependencies, run: str, until: str | None) -> list[Any]:
    if until is not None and not all(part.isdecimal() for part in until.split("-")):
        raise FieldError("after", f"there is no event {until[:80]!r}")
    return await deps.store.events.read_back(run, until, PIECE + 1)


async def followed(
    deps: Dependencies, record: JobRecord, run: RunRecord | None
) -> AsyncIterator[list[JobEvent]]:
    """Yield the events of a job as they happen, the oldest first, until it is over."""
    yield first_events(record)
    if run is None:
        return
    async for events in deps.followers.events(run.id, "0"):
        yield [each for event in events for each in events_of(record, event, run.max_steps)]


async def metric_rows(deps: Dependencies, run: RunRecord) -> list[dict[str, Any]]:
    """Return those metrics of a run that its job shows, by step."""
    path = deps.volume.path(f"runs/{run.id}/{METRICS}")
    rows, _ = await anyio.to_thread.run_sync(read_metrics, path, SHOWN, -1, MOST_ROWS, 0)
    return rows


async def with_results(deps: Dependencies, record: JobRecord, rows: list[dict[str, Any]]) -> None:
    """Keep the file with a job's metrics, unless it is there."""
    shelf, method = FileShelf(deps.settings.data), record.request.method.type
    if await anyio.to_thread.run_sync(shelf.file, record.result_file) is None:
        content = results_csv(method, rows)
        about = (record.project, record.organization)
        await anyio.to_thread.run_sync(
            shelf.add_results, record.result_file, RESULTS, content, *about
        )


async def job_checkpoints(deps: Dependencies, record: JobRecord) -> list[JobCheckpoint]:
    """Return the checkpoints of a job, the newest step first."""
    folder = deps.volume.path(f"runs/{record.run}/checkpoints")
    kept = await anyio.to_thread.run_sync(kept_checkpoints, folder)
    path = deps.volume.path(f"runs/{record.run}/{METRICS}")
    rows, _ = await anyio.to_thread.run_sync(read_metrics, path, SHOWN, -1, MOST_ROWS, 0)
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        by_step.setdefault(int(row.get("step", row.get("evaluation/step", -1))), {}).update(row)
    return [
        JobCheckpoint(
            id=checkpoint_id(record.id, step),
            created_at=int(created),
            fine_tuned_model_checkpoint=record.model_name(step),
            fine_tuning_job_id=record.id,
            step_number=step,
            metrics=metrics_of(by_step.get(step, {}), step),
        )
        # Several checkpoints of a step: the last one counts.
        for step, created in {each.step: each.created for each in reversed(kept)}.items()
    ][::-1]
