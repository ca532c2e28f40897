"""The HTTP application: `/v1/score`, `/v1/verifiers`, `/v1/teachers`, health, metrics.

Parses a request, asks the pool and `reward.remote_pool`, and answers. Computes nothing on the
content of a completion: only worker processes and remote services do.
"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, Field

from reward.metrics import Metrics
from reward.remote_endpoints import EndpointError, PassingError, SettingsError
from reward.remote_pool import RETRY_AFTER, Call, Calls
from reward.teachers import Teachers
from reward.validation import checked_items, checked_uses
from reward.verifiers.base import Verdict
from reward.verifiers.registry import Registry
from reward.workers.pool import Pool, PoolClosedError, QueueFullError
from reward.workers.requests import Request
from services.contracts.scores import (
    CheckRequest,
    CheckResponse,
    PartScore,
    ScoreItem,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
    ScoreStatus,
    UseProblem,
)
from services.contracts.teaching import (
    TeacherScoreRequest,
    TeacherScores,
    TeacherText,
    TeacherTextRequest,
)
from services.http import (
    CLIENT_GONE,
    BodyLimit,
    InFlight,
    KeyRequired,
    Limit,
    Problem,
    has_key,
    install,
    responses,
)
from services.http.problems import described

T = TypeVar("T")

WAY_OUT = (
    "this reward service asks for its key, and the request has none, or another one. Send it as "
    "`Authorization: Bearer KEY`: it is in the file `reward-key` of the service's data folder, and "
    "workers elsewhere take it from HEADRACE_REWARD_KEY"
)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Service:
    """The state that the routes share."""

    registry: Registry
    pool: Pool
    calls: Calls
    teachers: Teachers
    metrics: Metrics
    draining: bool = False
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=_set_event)
    """Set while no request is in flight."""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A drain waits for the block. Raises Problem while draining."""
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


class VerifierInfo(BaseModel):
    """One verifier that items may name."""

    name: str = Field(description="What an item's `verifier` takes.")
    description: str = Field(description="What it calls correct.")
    params: dict[str, Any] = Field(description="JSON Schema of an item's `params`.")
    available: bool = Field(description="Whether it can be used on this machine.")
    notice: str = Field(
        description="What to know about its use on this machine, or why it cannot be used."
    )


class VerifierList(BaseModel):
    """All verifiers of this service, by name."""

    verifiers: list[VerifierInfo] = Field(description="Built-in, installed and own ones.")


class Health(BaseModel):
    """The state of the service."""

    status: Literal["ok", "ready", "starting", "draining"] = Field(
        description="`ok` and `ready` come with 200, the others with 503."
    )
    unavailable: dict[str, str] = Field(
        default_factory=dict,
        description="With `ready`, for requests with the key: verifiers that cannot be used on "
        "this machine, and why.",
    )


def create_app(service: Service, max_request_bytes: int, key: str | None = None) -> FastAPI:
    """The application over a pool that the caller starts and closes. `key`: what requests have to
    show; None if only those who may use the service can connect to it."""
    app = FastAPIOffline(
        title="Headrace reward service",
        description="Scores completions with verifiers that run in killable processes.",
        version="1",
        responses=responses({"5XX": "What is wrong here"}),
    )
    # More than in the gateway: a body stays until its items are scored, and many workers wait.
    bodies = InFlight(8 * max_request_bytes)
    limit = Limit(max_request_bytes, "send fewer items a request, or raise --body-limit", bodies)
    app.add_middleware(BodyLimit, limit_of=lambda scope: limit)
    if key is not None:
        app.add_middleware(KeyRequired, key=key, way_out=WAY_OUT)
    install(app)
    app.openapi = lambda: described(FastAPI.openapi(app))  # type: ignore[method-assign]
    pool, calls = service.pool, service.calls
    service.metrics.watch(
        "pending_items", "Items without a verdict", lambda: pool.outstanding + calls.outstanding
    )
    service.metrics.watch("workers", "Worker processes", lambda: len(pool.worker_pids))
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/score",
        summary="Score completions",
        response_model=ScoreResponse,
        responses=responses(_PROBLEMS),
    )
    async def score(request: ScoreRequest, client: HTTPRequest) -> ScoreResponse | Response:
        """Score each item with its verifier. Results come back in the order of the items.

        Items of a client that disconnects are not scored, unless a worker has begun them.
        """
        began = time.perf_counter()
        code = "500"
        try:
            with service.serving():
                response = await _while_connected(client, _score(service, request))
            code = "200" if response is not None else str(CLIENT_GONE)
            return response or Response(status_code=CLIENT_GONE)
        except Problem as problem:
            code = str(problem.status)
            raise
        finally:
            service.metrics.requests.labels(code).inc()
            service.metrics.request_seconds.observe(time.perf_counter() - began)

    @app.get("/v1/verifiers", summary="List verifiers")
    async def verifiers() -> VerifierList:
        """The verifiers that items may name, and their parameters."""
        return VerifierList(
            verifiers=[
                VerifierInfo(
                    name=verifier.name,
                    description=verifier.description,
                    params=verifier.Params.model_json_schema(),
                    available=verifier.available,
                    notice=verifier.notice,
                )
                for verifier in service.registry.values()
            ]
        )

    @app.post(
        "/v1/verifiers/check",
        summary="Check verifiers, parameters and references",
        responses=responses(_UNFIT | _BUSY),
    )
    async def check(request: CheckRequest) -> CheckResponse:
        """Whether these verifiers exist, take these parameters, and can score with the references
        of these rows. Scores nothing."""
        problems, checks = checked_uses(request.uses, service.registry)
        verdicts = await _verdicts(service, [check.request for check in checks])
        problems += [
            UseProblem(use=check.use, row=check.row, path=check.path, message=verdict.detail)
            for check, verdict in zip(checks, verdicts, strict=True)
            if verdict.status is ScoreStatus.ERROR
        ]
        return CheckResponse(
            problems=sorted(problems, key=lambda problem: problem.use),
            teacher=_teacher_problem(service.teachers, request.teacher),
        )

    @app.post(
        "/v1/teachers/score",
        summary="Score tokens by a teacher",
        response_model=TeacherScores,
        responses=responses(_TEACHERS),
    )
    async def teach(request: TeacherScoreRequest, client: HTTPRequest) -> Any:
        """How likely a teacher finds each token of this completion, for distillation."""
        with service.serving():
            asked = service.teachers.logprobs(
                request.teacher, request.model, request.prompt, request.completion
            )
            found = await _while_connected(client, _taught(asked))
        # Not validated again: it may be a million numbers.
        return (
            Response(status_code=CLIENT_GONE)
            if found is None
            else JSONResponse({"logprobs": found})
        )

    @app.post(
        "/v1/teachers/text",
        summary="Text of a teacher's tokens",
        response_model=TeacherText,
        responses=responses(_TEACHERS),
    )
    async def text(request: TeacherTextRequest, client: HTTPRequest) -> Any:
        """What a teacher's tokenizer writes for these ids. Equal text for all ids of a vocabulary
        means equal vocabularies."""
        with service.serving():
            asked = service.teachers.text(request.teacher, request.model, request.tokens)
            found = await _while_connected(client, _taught(asked))
        return Response(status_code=CLIENT_GONE) if found is None else TeacherText(text=found)

    @app.get("/healthz", summary="Alive", response_model_exclude_defaults=True)
    async def healthz() -> Health:
        """Whether the process answers."""
        return Health(status="ok")

    @app.get(
        "/readyz",
        summary="Ready",
        response_model=Health,
        responses={503: {"description": "Not now; `status` says why", "model": Health}},
    )
    async def readyz(request: HTTPRequest) -> JSONResponse:
        """Whether to send requests here: not before a worker is up and the reward models are
        loaded, and not while draining."""
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not (service.pool.ready and service.calls.ready):
            return JSONResponse({"status": "starting"}, 503)
        # Reasons name files and packages of this machine.
        unavailable = _unavailable(service.registry) if has_key(request) else {}
        health = Health(status="ready", unavailable=unavailable)
        return JSONResponse(health.model_dump(exclude_defaults=True))

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Items, requests and worker processes; docs/metrics.md lists the names."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


async def _while_connected(client: HTTPRequest, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None, and `work` is cancelled, when the client goes away first."""
    working = asyncio.create_task(work)
    # The body has been read: all that can still come from the client is that it leaves.
    gone = asyncio.ensure_future(client.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        gone.cancel()
        working.cancel()


async def _score(service: Service, request: ScoreRequest) -> ScoreResponse:
    items = checked_items(request.items, service.registry)
    if len(items) > service.pool.capacity:
        raise Problem(
            413,
            f"{len(items)} items are more than the queue holds ({service.pool.capacity}); send "
            "fewer a request, or raise --max-queued-items",
        )
    verdicts = await _verdicts(service, items)
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


async def _verdicts(service: Service, items: Sequence[Request | Call]) -> list[Verdict]:
    """In the order of the items. Raises Problem (429, 503)."""
    own = [item for item in items if isinstance(item, Request)]
    asked = [item for item in items if isinstance(item, Call)]
    try:
        # All or none, so that a request that is refused leaves no work behind.
        service.pool.admit(len(own))
        service.calls.admit(len(asked))
        judged, answered = map(
            iter, await asyncio.gather(service.pool.score(own), service.calls.score(asked))
        )
    except QueueFullError as full:
        raise Problem(
            429,
            f"{full}; try again in {full.retry_after} s, or add workers",
            headers={"Retry-After": str(full.retry_after)},
        ) from None
    except PoolClosedError:
        raise _draining() from None
    return [next(judged if isinstance(item, Request) else answered) for item in items]


async def _taught(asked: Awaitable[T]) -> T:
    """What a teacher answers. Raises Problem (422, 503).

    Groups wait where the operator can mend it: a teacher that the settings do not name, a key that
    it does not take. 422 would cost their prompts.
    """
    try:
        return await asked
    except (PassingError, SettingsError, ValueError) as error:
        raise Problem(503, str(error), headers={"Retry-After": str(RETRY_AFTER)}) from None
    except EndpointError as error:
        raise Problem(422, str(error)) from None


def _teacher_problem(teachers: Teachers, name: str | None) -> str | None:
    try:
        if name is not None:
            teachers.check(name)
    except ValueError as error:
        return str(error)
    return None


def _unavailable(registry: Registry) -> dict[str, str]:
    return {
        name: one.notice for name, one in registry.items() if not (one.available or one.lacks_extra)
    }


def _detail(item: ScoreItem, verdict: Verdict) -> str:
    """What broke is the dataset's to repair, so its row is named."""
    if verdict.status is not ScoreStatus.ERROR or item.row is None:
        return verdict.detail
    return f"dataset row {item.row}: {verdict.detail}"


def _draining() -> Problem:
    return Problem(
        503,
        "this reward service is shutting down; try another, or again in a second",
        headers={"Retry-After": "1", "Connection": "close"},
    )


_UNFIT: dict[int | str, str] = {
    400: "The body is not JSON",
    413: "The body, or the number of items, is over the limit",
    415: "The body is not sent as JSON",
    422: "The body does not fit the schema",
}
_BUSY: dict[int | str, str] = {
    429: "The queue is full; Retry-After says when to try again",
    503: "The service is draining",
}
_TEACHERS: dict[int | str, str] = _UNFIT | {
    422: "There is no such teacher, or it refuses these tokens",
    503: "The teacher is away or overloaded, or the service is draining",
}
_PROBLEMS: dict[int | str, str] = (
    _UNFIT
    | _BUSY
    | {422: "An item names an unknown verifier or parameter, or does not fit the schema"}
)
