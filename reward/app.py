"""The HTTP application: `/v1/score`, `/v1/verifiers`, health, readiness and metrics.

Parses, asks the pool, answers. Whether a completion is right is decided in worker processes alone;
nothing here runs a verifier.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from reward.limits import BodyLimit
from reward.metrics import Metrics
from reward.pool import Pool, PoolClosedError, QueueFullError, Request, request_for
from reward.problems import ProblemError, ProblemItem, install, responses, summary
from reward.verifiers.base import Item
from reward.verifiers.registry import Registry, nearest, param_problems, parse_params
from services.contracts.scores import ScoreItem, ScoreRequest, ScoreResponse, ScoreResult


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Service:
    """What the routes share."""

    registry: Registry
    pool: Pool
    metrics: Metrics
    draining: bool = False
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=_set_event)
    """Set while no request is in flight."""


class VerifierInfo(BaseModel):
    """One verifier that items may name."""

    name: str
    description: str
    params: dict[str, Any]
    """JSON Schema of an item's `params`."""


class VerifierList(BaseModel):
    """All verifiers of this service, by name."""

    verifiers: list[VerifierInfo]


def create_app(service: Service, max_request_bytes: int) -> FastAPI:
    """The application over a pool that the caller starts and closes."""
    app = FastAPI(
        title="Headrace reward service",
        description="Scores completions with verifiers that run in killable processes.",
        version="1",
        responses=responses(_PROBLEMS),
    )
    app.add_middleware(BodyLimit, limit=max_request_bytes)
    install(app)
    pool = service.pool
    service.metrics.watch("pending_items", "Items without a verdict", lambda: pool.outstanding)
    service.metrics.watch("workers", "Worker processes", lambda: len(pool.worker_pids))
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        """Score completions. Results come back in the order of the items."""
        began = time.perf_counter()
        service.in_flight += 1
        service.idle.clear()
        code = "500"
        try:
            response = await _score(service, request)
            code = "200"
            return response
        except ProblemError as problem:
            code = str(problem.status)
            raise
        finally:
            service.in_flight -= 1
            if service.in_flight == 0:
                service.idle.set()
            service.metrics.requests.labels(code).inc()
            service.metrics.request_seconds.observe(time.perf_counter() - began)

    @app.get("/v1/verifiers")
    async def verifiers() -> VerifierList:
        """The verifiers that items may name, and their parameters."""
        return VerifierList(
            verifiers=[
                VerifierInfo(
                    name=verifier.name,
                    description=verifier.description,
                    params=verifier.Params.model_json_schema(),
                )
                for verifier in service.registry.values()
            ]
        )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", response_model=dict[str, str])
    async def readyz() -> JSONResponse:
        """Whether to send requests here: not before a worker is up, and not while draining."""
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not service.pool.ready:
            return JSONResponse({"status": "starting"}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


async def _score(service: Service, request: ScoreRequest) -> ScoreResponse:
    if service.draining:
        raise _draining()
    items = _checked(request.items, service.registry)
    if len(items) > service.pool.capacity:
        raise ProblemError(
            413,
            f"{len(items)} items are more than the queue holds ({service.pool.capacity}); send "
            "fewer a request, or raise --max-queued-items",
        )
    try:
        verdicts = await service.pool.score(items)
    except QueueFullError as full:
        raise ProblemError(
            429,
            f"{full}; try again in {full.retry_after} s, or add workers",
            headers={"Retry-After": str(full.retry_after)},
        ) from None
    except PoolClosedError:
        raise _draining() from None
    return ScoreResponse(
        results=[
            ScoreResult(
                id=item.id,
                status=verdict.status,
                reward=verdict.reward,
                components=verdict.components,
                detail=verdict.detail,
            )
            for item, verdict in zip(request.items, verdicts, strict=True)
        ]
    )


def _draining() -> ProblemError:
    return ProblemError(
        503,
        "this reward service is shutting down; try another, or again in a second",
        headers={"Retry-After": "1", "Connection": "close"},
    )


def _checked(items: list[ScoreItem], registry: Registry) -> list[Request]:
    """Items as the pool takes them. Raises ProblemError (422) naming each that cannot be scored as
    asked, and why."""
    problems: list[ProblemItem] = []
    requests: list[Request] = []
    for index, item in enumerate(items):
        verifier = registry.get(item.verifier)
        if verifier is None:
            hint = nearest(item.verifier, registry) or f"; there is {', '.join(registry)}"
            message = f"verifier {item.verifier[:80]!r} does not exist{hint}"
            problems.append(_problem(index, item, ".verifier", message))
            continue
        try:
            params = parse_params(verifier, item.params)
            item.id.encode()
            wire = Item(item.verifier, item.prompt, item.completion, item.answer, item.params)
            requests.append(request_for(wire, params))
        except ValidationError as error:
            for name, message in param_problems(verifier, error):
                problems.append(_problem(index, item, f".params.{name}", message))
        except (ValueError, RecursionError) as error:
            message = f"cannot be sent to a worker: {error}"
            problems.append(_problem(index, item, "", message))
    counts = Counter(item.id for item in items)
    for index, item in enumerate(items):
        if counts[item.id] > 1:
            problems.append(_problem(index, item, ".id", "occurs more than once in this request"))
    if problems:
        detail = f"{summary(problems)}; GET /v1/verifiers lists verifiers and their parameters"
        raise ProblemError(422, detail, problems)
    return requests


def _problem(index: int, item: ScoreItem, key: str, message: str) -> ProblemItem:
    return ProblemItem(path=f"items.{index}{key}", message=message, item=item.id[:200])


_PROBLEMS = {
    400: "The body is not JSON",
    413: "The body, or the number of items, is over the limit",
    422: "An item names an unknown verifier or parameter, or does not fit the schema",
    429: "The queue is full; Retry-After says when to try again",
    503: "The service is draining",
}
