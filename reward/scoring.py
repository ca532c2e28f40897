"""The work of the routes of `app`: scores items and asks teachers.

Items go to the pool or to `reward.remote_pool`. A refused request leaves no work behind.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from reward.metrics import Metrics
from reward.remote_endpoints import EndpointError, PassingError, SettingsError
from reward.remote_pool import RETRY_AFTER, Calls, RemoteCall
from reward.teachers import Teachers
from reward.validation import checked_items
from reward.verifiers.base import UNJUDGED, Verdict
from reward.verifiers.registry import Registry
from reward.workers.pool import Pool, PoolClosedError, QueueFullError
from reward.workers.protocol import Request
from services.contracts.scores import (
    PartScore,
    ScoreItem,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
    ScoreStatus,
)
from services.contracts.thoughts import answer_of
from services.http import Problem
from services.runtime.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")
UNFINISHED = "the completion ends within its thoughts: nothing closes the last one"


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Service:
    registry: Registry
    pool: Pool
    calls: Calls
    teachers: Teachers
    metrics: Metrics
    draining: bool = False
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=_set_event)
    """Set while no request is in flight."""
    logged: set[tuple[str, str]] = field(default_factory=set)
    """Each verifier and exception type that has been logged: one log line for each pair."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Keep a drain waiting until the block has ended. Raises Problem while draining."""
        if self.draining:
            raise _draining()
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self.idle.set()


async def scored(service: Service, request: ScoreRequest) -> ScoreResponse:
    """Score a request, and return its results in the order of its items. Raises Problem (413, 422,
    429, 503)."""
    items = checked_items(request.items, service.registry)
    if len(items) > service.pool.capacity:
        raise Problem(
            413,
            f"{len(items)} items are more than the queue holds ({service.pool.capacity}); send "
            "fewer a request, or raise --max-queued-items",
        )
    verdicts = await verdicts_of(service, items)
    return ScoreResponse(
        results=[
            ScoreResult(
                id=item.id,
                status=verdict.status,
                reward=verdict.reward,
                components=verdict.components,
                parts=[PartScore(end=end, score=score) for end, score in verdict.parts],
                detail=_detail(item, verdict),
            )
            for item, verdict in zip(request.items, verdicts, strict=True)
        ]
    )


async def verdicts_of(service: Service, items: Sequence[Request | RemoteCall]) -> list[Verdict]:
    """Return the verdicts in the order of the items. Raises Problem (429, 503)."""
    local = [item for item in items if isinstance(item, Request)]
    asked = [item for item in items if isinstance(item, RemoteCall)]
    try:
        # Admit all items, or refuse the whole request.
        service.pool.admit(len(local))
        service.calls.admit(len(asked))
        pooled, called = await asyncio.gather(service.pool.score(local), service.calls.score(asked))
    except QueueFullError as full:
        raise Problem(
            429,
            f"{full}; try again in {full.retry_after} s, or add workers",
            headers={"Retry-After": str(full.retry_after)},
        ) from None
    except PoolClosedError:
        raise _draining() from None
    for item, verdict in zip(local, pooled, strict=True):
        _log_unjudged(service, item.verifier, verdict)
    judged, answered = iter(pooled), iter(called)
    return [next(judged if isinstance(item, Request) else answered) for item in items]


def _log_unjudged(service: Service, verifier: str, verdict: Verdict) -> None:
    """Count the answers on which a built-in verifier raised an exception, and log the first of each
    type. Their reward of 0 would hide a mistake in the verifier."""
    if not verdict.detail.startswith(UNJUDGED):
        return
    error = verdict.detail.removeprefix(UNJUDGED)
    kind = error.partition(":")[0]
    service.metrics.unjudged.labels(verifier, kind).inc()
    if (verifier, kind) not in service.logged:
        service.logged.add((verifier, kind))
        log.warning(
            "a built-in verifier raised an exception on an answer, which gets reward 0: probably a "
            "mistake in the verifier (headrace_reward_unjudged_total counts such answers)",
            verifier=verifier,
            error=error,
        )


async def taught(asked: Awaitable[T]) -> T:
    """Return a teacher's answer. Raises Problem (422, 503).

    The status is 503 for a mistake that the operator can mend, such as an unknown teacher or a
    refused key: groups then wait. A 422 would cost their prompts.
    """
    try:
        return await asked
    except (PassingError, SettingsError, ValueError) as error:
        raise Problem(503, str(error), headers={"Retry-After": str(RETRY_AFTER)}) from None
    except EndpointError as error:
        raise Problem(422, str(error)) from None


def teacher_problem(teachers: Teachers, name: str | None) -> str | None:
    """Return why the teacher `name` cannot be asked. Return None if it can, or if `name` is
    None."""
    try:
        if name is not None:
            teachers.check(name)
    except ValueError as error:
        return str(error)
    return None


def _detail(item: ScoreItem, verdict: Verdict) -> str:
    """Return the verdict's reason. An error also names the row of the dataset, which may need
    repair."""
    if verdict.status is ScoreStatus.ERROR and item.row is not None:
        return f"dataset row {item.row}: {verdict.detail}"
    unread = verdict.status is ScoreStatus.NO_ANSWER
    if unread and answer_of(item.completion, item.prefill) is None:
        return UNFINISHED
    return verdict.detail


def _draining() -> Problem:
    return Problem(
        503,
        "this reward service is shutting down; try another, or again in a second",
        headers={"Retry-After": "1", "Connection": "close"},
    )
