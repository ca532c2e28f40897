"""The HTTP application: `/v1/score`, `/v1/verifiers`, `/v1/teachers`, `/v1/python`, health,
metrics.

It parses a request, calls `scoring`, and answers. Only worker processes and remote services compute
on the content of a completion.
"""

import time
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import BackgroundTasks, Depends, FastAPI, Query, Response
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, Field

from reward.grading import run_grader
from reward.programs import work_of
from reward.recent_logs import RecentLogs
from reward.scoring import Service, scored, taught, teacher_problem, verdicts_of
from reward.uploads import Uploads, reload
from reward.validation import checked_uses
from reward.verifiers.registry import Registry
from services.contracts.graders import GraderRun, GraderRunRequest
from services.contracts.logs import RecentLines
from services.contracts.programs import PythonOutput, PythonRequest
from services.contracts.scores import (
    CheckRequest,
    CheckResponse,
    ScoreRequest,
    ScoreResponse,
    ScoreStatus,
    UseProblem,
)
from services.contracts.teaching import (
    TeacherScoreRequest,
    TeacherScores,
    TeacherText,
    TeacherTextRequest,
)
from services.contracts.verifiers import (
    MadeVerifier,
    NewVerifier,
    VerifierInfo,
    VerifierList,
)
from services.http import (
    CLIENT_GONE,
    BodyLimit,
    InFlight,
    KeyRequired,
    Limit,
    Problem,
    SingleHeaders,
    has_key,
    install,
    refuse_unused_parameters,
    responses,
    while_connected,
)
from services.http.problems import described

WAY_OUT = (
    "this reward service asks for its key, and the request has none, or another one. Send it as "
    "`Authorization: Bearer KEY`: it is in the file `reward-key` of the service's data folder, and "
    "workers elsewhere take it from HEADRACE_REWARD_KEY"
)


class ServiceHealth(BaseModel):
    """The state of the service."""

    status: Literal["ok", "ready", "starting", "loading", "draining"] = Field(
        description="`ok` and `ready` come with 200, the others with 503."
    )
    detail: str = Field("", description="With `loading`: what is loaded, and for how long.")
    unavailable: dict[str, str] = Field(
        default_factory=dict,
        description="With `ready`, for requests with the key: verifiers that cannot be used on "
        "this machine, and why.",
    )


def create_app(
    service: Service,
    max_request_bytes: int,
    key: str | None = None,
    uploads: Uploads | None = None,
    logs: RecentLogs | None = None,
) -> FastAPI:
    """Return the application over a pool that the caller starts and closes. Requests must carry
    `key`. Without a key, everybody who can connect may use the service. `uploads`: takes verifiers
    over the API. `logs`: what the service has logged."""
    app = FastAPIOffline(
        title="Headrace reward service",
        description="Scores completions with verifiers that run in killable processes. "
        "A query parameter that a route does not have is refused with 422.",
        version="1",
        responses=responses({"5XX": "What is wrong here"}),
        dependencies=[Depends(refuse_unused_parameters)],
    )
    # The factor is larger than the gateway's: a body stays until its items are scored, and many
    # workers wait.
    bodies = InFlight(8 * max_request_bytes)
    limit = Limit(max_request_bytes, "send fewer items a request, or raise --body-limit", bodies)
    app.add_middleware(BodyLimit, limit_of=lambda scope: limit)
    if key is not None:
        app.add_middleware(KeyRequired, key=key, way_out=WAY_OUT)
    app.add_middleware(SingleHeaders)
    install(app)
    app.openapi = lambda: described(FastAPI.openapi(app))  # type: ignore[method-assign]
    pool, calls = service.pool, service.calls
    service.metrics.watch(
        "pending_items", "Items without a verdict", lambda: pool.outstanding + calls.outstanding
    )
    service.metrics.watch("workers", "Worker processes", lambda: len(pool.worker_pids))
    _add_routes(app, service, uploads)
    if uploads is not None:
        _add_uploads(app, uploads)
    if logs is not None:
        _add_logs(app, logs)
    return app


def _add_logs(app: FastAPI, logs: RecentLogs) -> None:
    @app.get("/v1/logs", summary="The newest lines of the log")
    async def read(
        start: Annotated[str, Query(max_length=64, description="`start` of the last answer.")] = "",
        number: Annotated[int, Query(ge=0, description="`next` of the last answer.")] = 0,
    ) -> RecentLines:
        """Return the lines since the last answer. The gateway appends them to the installation's
        log."""
        return logs.after(start, number)


def _add_uploads(app: FastAPI, uploads: Uploads) -> None:
    @app.post(
        "/v1/verifiers",
        status_code=HTTPStatus.CREATED,
        summary="Add a verifier",
        responses=responses(
            _UNFIT
            | {
                403: "The operator does not allow it",
                422: "The file does not load, its tests fail, or its name is taken",
            }
        ),
    )
    async def add(new: NewVerifier, tasks: BackgroundTasks) -> MadeVerifier:
        """Load a Python file, run its tests, and keep it as the next version of its verifier. Then
        the service reloads: requests wait for a few seconds."""
        made = await uploads.add(new)
        tasks.add_task(reload)
        return made

    @app.delete(
        "/v1/verifiers/{verifier}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Remove a verifier that was added",
        responses=responses(
            {403: "The operator does not allow it", 404: "No such verifier was added"}
        ),
    )
    async def remove(verifier: str, tasks: BackgroundTasks) -> None:
        """Remove NAME with all of its versions, or NAME@VERSION. Then the service reloads."""
        await uploads.remove(verifier)
        tasks.add_task(reload)


def _add_routes(app: FastAPI, service: Service, uploads: Uploads | None) -> None:
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
                response = await while_connected(client, scored(service, request))
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
        versions = uploads.versions() if uploads is not None else {}
        return VerifierList(
            verifiers=[
                VerifierInfo(
                    name=name,
                    description=verifier.description,
                    params=verifier.Params.model_json_schema(),
                    available=verifier.available,
                    notice=verifier.notice,
                    versions=versions.get(name, []),
                )
                for name, verifier in service.registry.items()
            ]
        )

    @app.post(
        "/v1/verifiers/check",
        summary="Check verifiers, parameters and references",
        responses=responses(_UNFIT | _BUSY),
    )
    async def check(request: CheckRequest) -> CheckResponse:
        """Check that the verifiers exist, accept these parameters, and can score with the rows'
        references. Nothing is scored."""
        uses = checked_uses(request.uses, service.registry)
        verdicts = await verdicts_of(service, [check.request for check in uses.checks])
        unreadable: list[UseProblem] = []
        remarks: list[UseProblem] = []
        for check, verdict in zip(uses.checks, verdicts, strict=True):
            if verdict.status is ScoreStatus.ERROR or verdict.detail:
                problem = UseProblem(
                    use=check.use, row=check.row, path=check.path, message=verdict.detail
                )
                (unreadable if verdict.status is ScoreStatus.ERROR else remarks).append(problem)
        return CheckResponse(
            problems=sorted([*uses.problems, *unreadable], key=lambda problem: problem.use),
            remarks=remarks,
            takes_any=uses.takes_any,
            own_verifier_uses=uses.own_verifier_uses,
            teacher=teacher_problem(service.teachers, request.teacher),
        )

    @app.post(
        "/v1/teachers/score",
        summary="Score tokens by a teacher",
        response_model=TeacherScores,
        responses=responses(_TEACHERS),
    )
    async def teach(request: TeacherScoreRequest, client: HTTPRequest) -> Any:
        """Return a teacher's log-probability for each token of this completion, for
        distillation."""
        with service.serving():
            asked = service.teachers.logprobs(
                request.teacher, request.model, request.prompt, request.completion
            )
            logprobs = await while_connected(client, taught(asked))
        # The reply is not validated again: it may hold a million numbers.
        return (
            Response(status_code=CLIENT_GONE)
            if logprobs is None
            else JSONResponse({"logprobs": logprobs})
        )

    @app.post(
        "/v1/teachers/text",
        summary="Text of a teacher's tokens",
        response_model=TeacherText,
        responses=responses(_TEACHERS),
    )
    async def text(request: TeacherTextRequest, client: HTTPRequest) -> Any:
        """Return the one text that a teacher's tokenizer writes for all these ids together. A
        worker compares it with its own tokenizer's text, to see that both have one vocabulary."""
        with service.serving():
            asked = service.teachers.text(request.teacher, request.model, request.tokens)
            decoded = await while_connected(client, taught(asked))
        return Response(status_code=CLIENT_GONE) if decoded is None else TeacherText(text=decoded)

    @app.post(
        "/v1/python",
        summary="Run a Python program",
        response_model=PythonOutput,
        responses=responses(_PROGRAMS),
    )
    async def python(request: PythonRequest, client: HTTPRequest) -> Any:
        """Run a program of the policy in the sandbox of the verifier `code`: the tool `python` of
        `rollout.episode: tools`."""
        with service.serving():
            ran = verdicts_of(service, [work_of(request, service.registry)])
            verdicts = await while_connected(client, ran)
        if verdicts is None:
            return Response(status_code=CLIENT_GONE)
        if verdicts[0].status is ScoreStatus.ERROR:
            # The program may have caused this: a client that retries for ever would never end.
            raise Problem(422, verdicts[0].detail)
        return PythonOutput(output=verdicts[0].detail)

    @app.post(
        "/v1/graders/run",
        summary="Run a grader",
        response_model=GraderRun,
        responses=responses(_UNFIT | _BUSY),
    )
    async def grade(request: GraderRunRequest, client: HTTPRequest) -> Any:
        """Grade one answer with a grader object of OpenAI's API, and return the scores of its parts
        and its errors. `POST /v1/score` with the verifier `grader` gives the verdict alone."""
        with service.serving():
            outcome = await while_connected(client, run_grader(service, request))
        return Response(status_code=CLIENT_GONE) if outcome is None else outcome

    @app.get("/healthz", summary="Alive", response_model_exclude_defaults=True)
    async def healthz() -> ServiceHealth:
        """Return 200 while the process answers."""
        return ServiceHealth(status="ok")

    @app.get(
        "/readyz",
        summary="Ready",
        response_model=ServiceHealth,
        responses={503: {"description": "Not now; `status` says why", "model": ServiceHealth}},
    )
    async def readyz(request: HTTPRequest) -> JSONResponse:
        """Return 200 if requests may be sent here: a worker is up, the reward models are loaded,
        and the service is not draining."""
        if service.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not (service.pool.ready and service.calls.ready):
            if loading := service.calls.loading:
                return JSONResponse({"status": "loading", "detail": loading}, 503)
            return JSONResponse({"status": "starting"}, 503)
        # Reasons name files and packages of this machine.
        unavailable = _unavailable(service.registry) if has_key(request) else {}
        health = ServiceHealth(status="ready", unavailable=unavailable)
        return JSONResponse(health.model_dump(exclude_defaults=True))

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Return counts of items, requests and worker processes. docs/metrics.md lists the
        names."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


def _unavailable(registry: Registry) -> dict[str, str]:
    return {
        name: verifier.notice
        for name, verifier in registry.items()
        if not (verifier.available or verifier.lacks_extra)
    }


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
_PROGRAMS: dict[int | str, str] = (
    _UNFIT
    | _BUSY
    | {
        422: "The body does not fit the schema, or the program could not be run to its end",
        503: "No program can run here, or the service is draining",
    }
)
_PROBLEMS: dict[int | str, str] = (
    _UNFIT
    | _BUSY
    | {422: "An item names an unknown verifier or parameter, or does not fit the schema"}
)
