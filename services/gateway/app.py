"""The application: the routers of `routes/`, limits, problem documents, and its lifespan."""

import asyncio
import functools
import importlib
import pkgutil
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio.to_thread
import httpx
from fastapi import Depends, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.types import Scope

from services.gateway import problems, routes
from services.gateway.authentication import Authentication, Keyring
from services.gateway.chains.advance import keep_advancing
from services.gateway.config_components import with_config
from services.gateway.dataset_findings import RowCounting
from services.gateway.dependencies import Dependencies
from services.gateway.event_followers import Followers
from services.gateway.fine_tuning_jobs.creation import keep_finishing
from services.gateway.idempotency import Idempotency
from services.gateway.idempotency import described as with_idempotency
from services.gateway.live_stream import LiveStream
from services.gateway.openai.errors import BELOW as SESSIONS
from services.gateway.openai.errors import FINE_TUNING, POLICY, OpenAIErrors
from services.gateway.openai_jobs.files import MAX_PART
from services.gateway.policy.limits import OpenCalls
from services.gateway.previews import Previews
from services.gateway.reference_checks import ReferenceChecks
from services.gateway.reports import Reports
from services.gateway.reward_logs import keep_taking
from services.gateway.run_deletion import remove_deleted
from services.gateway.run_details import RunDetails
from services.gateway.run_file_retention import Sizes, keep_pruning
from services.gateway.run_index import RunIndex
from services.gateway.sessions.dataset_rows import DatasetRows
from services.gateway.sessions.responses import Responses
from services.gateway.sessions.turn_requests import Turns
from services.gateway.settings import GatewaySettings
from services.gateway.tracking import TrackerCarriers
from services.http import (
    Bandwidth,
    BodyLimit,
    BrowserHeaders,
    Compressed,
    InFlight,
    Limit,
    SingleHeaders,
    StrictBodies,
    refuse_unused_parameters,
    responses,
)
from services.http.problems import described
from services.payloads import Payloads, place_of
from services.runtime.tasks import end
from services.series import RunSeries
from services.store import Store
from services.volume import Volume

SMALL_BODY = 1 << 20
"""Bytes of a body that holds no rows of a dataset: a config has a few KiB."""
FORM_BYTES = 1 << 30
"""Bytes of files in one form. The form lies in the folder for temporary files until its end."""
PREVIEW_BYTES = 64 << 20
"""Bytes of a file that is only previewed."""
PART_BYTES = 256 << 20
"""Bytes of a part of a file."""
LARGE = re.compile(r"/v1/series|/openapi\.json|/guide/.*")
"""Paths of answers that are worth compressing. The page's files are compressed already."""
DESCRIPTION = """
Self-hosted reinforcement learning of language models: upload a dataset, submit a run, watch it,
use what it made.

Every error is an [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problem document
(`application/problem+json`): `detail` says what is wrong and the way out, `problems` lists each
thing where several are. A query parameter that a route does not have is refused with 422, and so
are several values for a parameter that takes one. Errors of `/v1/chat/completions`,
`/v1/completions`, `/v1/models`, `/v1/responses` and below `/v1/sessions/` and `/openai/v1/` have
the format of OpenAI's API instead, and errors of Anthropic's Messages the format of Anthropic's.
"""

TAGS = [
    {"name": "datasets", "description": "Rows to train on; uploaded once, immutable, appendable."},
    {"name": "runs", "description": "Training jobs: submit, list, follow, cancel, delete."},
    {"name": "chains", "description": "Runs that start from each other, queued at once."},
    {"name": "recipes", "description": "Run configs known to work."},
    {
        "name": "sessions",
        "description": "Agents that are trained: groups of sessions, and the "
        "APIs of each (docs/agents.md): OpenAI's and Anthropic's, each with its own errors.",
    },
    {
        "name": "policy",
        "description": "OpenAI's and Anthropic's APIs for the policies that runs train, each with "
        "its own errors.",
    },
    {
        "name": "fine-tuning",
        "description": "OpenAI's fine-tuning API. Its errors have OpenAI's format.",
    },
    {"name": "verifiers", "description": "What scores answers; admins may add their own."},
    {"name": "workers", "description": "Who generates."},
    {"name": "files", "description": "Parts of the data volume, for hosts without it."},
    {"name": "keys", "description": "Who may ask."},
    {"name": "operation", "description": "Health and metrics of the gateway."},
]


def with_key(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the header of the API key to an OpenAPI document, so that its page has a button for the
    key."""
    bearer = {"type": "http", "scheme": "bearer", "description": "An API key."}
    schema.setdefault("components", {})["securitySchemes"] = {"key": bearer}
    schema["security"] = [{"key": []}]
    return schema


def create_app(settings: GatewaySettings, first_key: str) -> FastAPI:
    """Make the gateway's application. Without Redis it starts too, and answers 503 until Redis is
    there. Requests need `first_key`, or a key made later."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store.from_url(settings.redis_url.get_secret_value())
        volume = Volume(settings.data)
        sizes, index = Sizes(settings.data), RunIndex(store)
        details = RunDetails(store, sizes)
        async with httpx.AsyncClient() as http:
            deps = app.state.deps = Dependencies(
                settings,
                store,
                volume,
                http,
                Keyring(first_key, store),
                sizes,
                index,
                details,
                Followers(store),
                LiveStream(store, index, details.of),
                Bandwidth(settings.file_bandwidth_mbit),
                Reports(store, volume, settings.gpu_hour_price),
                turns := Turns(store),
                Responses(store, turns),
                Payloads(store, place_of(settings)),
                OpenCalls(settings),
                DatasetRows(volume),
                ReferenceChecks(settings, http, store),
                Previews(volume),
                RowCounting(volume),
                RunSeries(settings.data),
                TrackerCarriers(store, volume),
            )
            await anyio.to_thread.run_sync(remove_deleted, settings.data)
            tasks = [
                asyncio.create_task(keep_pruning(store, settings, deps.payloads)),
                asyncio.create_task(keep_advancing(deps)),
                asyncio.create_task(keep_finishing(deps)),
                asyncio.create_task(index.keep_rereading()),
                asyncio.create_task(keep_taking(store, settings, http)),
            ]
            tasks.append(asyncio.create_task(deps.tracking.keep_carrying()))
            if settings.reports:
                tasks.append(asyncio.create_task(deps.reports.keep_writing()))
            try:
                yield
            finally:
                await end(tasks)
                for part in (
                    *(deps.references, deps.counting, deps.turns, deps.followers, deps.stream),
                    store,
                ):
                    await part.close()

    app = FastAPIOffline(
        title="Headrace",
        version=version("headrace"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        responses=responses({"4XX": "What is wrong with the request", "5XX": "What is wrong here"}),
        dependencies=[Depends(refuse_unused_parameters)],
        lifespan=lifespan,
        redoc_url=None,
    )
    problems.install(app)
    # Made once: the functions change the document that they get.
    app.openapi = functools.cache(  # type: ignore[method-assign]
        lambda: with_key(with_config(with_idempotency(described(FastAPI.openapi(app)))))
    )

    # The innermost: a body that is refused for its size, or for want of a key, is not read for it.
    app.add_middleware(StrictBodies)
    app.add_middleware(Idempotency, store_of=lambda: app.state.deps.store, data=settings.data)
    app.add_middleware(BodyLimit, limit_of=_limits(settings))
    app.add_middleware(
        Authentication,
        keyring_of=lambda: app.state.deps.keyring,
        hosts=settings.host_names,
        data=settings.data,
    )
    app.add_middleware(Compressed, paths=LARGE)
    app.add_middleware(SingleHeaders)
    app.add_middleware(BrowserHeaders)
    app.add_middleware(OpenAIErrors)
    for module in pkgutil.walk_packages(routes.__path__, f"{routes.__name__}."):
        if not module.ispkg:
            app.include_router(importlib.import_module(module.name).router)
    return app


def _limits(settings: GatewaySettings) -> Callable[[Scope], Limit]:
    """Return the limit of a request's body, by its path."""
    form_limit = min(settings.upload_limit, FORM_BYTES)
    bodies, uploads = InFlight(2 * settings.body_limit), InFlight(4 * form_limit)
    payloads = InFlight(4 * settings.upload_limit)
    # Turns have a larger limit: a turn's body is held until the turn has been sampled.
    turns = InFlight(8 * settings.body_limit)

    def limit_of(scope: Scope) -> Limit:
        path = scope["path"].rstrip("/")
        if path == "/v1/datasets":
            way_out = (
                "send the files in parts with POST /v1/uploads, as `headrace datasets add` does"
                if settings.upload_limit > FORM_BYTES
                else "upload a part of it and append the rest with POST /v1/prompts, or raise the "
                "gateway's HEADRACE_UPLOAD_LIMIT"
            )
            return Limit(form_limit, way_out, uploads)
        if path == f"{FINE_TUNING}files":
            way_out = f"send it in parts with POST {FINE_TUNING}uploads"
            return Limit(form_limit, way_out, uploads)
        if path.startswith(f"{FINE_TUNING}uploads/") and path.endswith("/parts"):
            # The form around the part takes bytes too.
            return Limit(MAX_PART + SMALL_BODY, "send parts of at most 64 MiB", uploads)
        if path == "/v1/datasets/preview":
            return Limit(min(form_limit, PREVIEW_BYTES), "send its beginning (is_head)", uploads)
        if scope["method"] == "PUT" and path.startswith("/v1/uploads/"):
            return Limit(PART_BYTES, "send smaller parts", uploads)
        if scope["method"] == "PUT" and path.startswith("/v1/files/"):
            way_out = "raise the gateway's HEADRACE_UPLOAD_LIMIT"
            return Limit(settings.upload_limit, way_out, payloads)
        if path.startswith(SESSIONS):
            way_out = "begin a new session, or raise the gateway's HEADRACE_BODY_LIMIT"
            return Limit(settings.body_limit, way_out, turns)
        if path == "/v1/prompts":
            way_out = "split it, or raise the gateway's HEADRACE_BODY_LIMIT"
            return Limit(settings.body_limit, way_out, bodies)
        if path.startswith(POLICY):
            return Limit(SMALL_BODY, "leave the oldest messages out", bodies)
        return Limit(SMALL_BODY, "no request but those with a dataset's rows needs as much", bodies)

    return limit_of
