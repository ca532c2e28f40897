"""The application: routers, limits, problem documents, and what lives as long as it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx
from fastapi import FastAPI
from starlette.types import Scope

from services.gateway import problems
from services.gateway.access import Access
from services.gateway.limits import BodyLimit
from services.gateway.routes import (
    datasets,
    events,
    files,
    health,
    metrics,
    page,
    prompts,
    recipes,
    runs,
    workers,
)
from services.gateway.settings import GatewaySettings
from services.store import Store
from services.volume import Volume

DESCRIPTION = """
Self-hosted reinforcement learning of language models: upload a dataset, submit a run, watch it,
use what it made.

Every error is an [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problem document
(`application/problem+json`): `detail` says what is wrong and the way out, `problems` lists each
thing where several are.
"""

TAGS = [
    {"name": "datasets", "description": "Rows to train on; uploaded once, immutable, appendable."},
    {"name": "runs", "description": "Training jobs: submit, list, follow, cancel."},
    {"name": "recipes", "description": "Run configs known to work."},
    {"name": "workers", "description": "Who generates."},
    {"name": "files", "description": "Parts of the data volume, for hosts without it."},
    {"name": "operation", "description": "Health and metrics of the gateway."},
]


def create_app(settings: GatewaySettings) -> FastAPI:
    """The gateway. Starts without Redis, too: it answers 503 until Redis is there."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store.from_url(settings.redis_url.get_secret_value())
        async with httpx.AsyncClient() as http:
            app.state.access = Access(settings, store, Volume(settings.data), http)
            try:
                yield
            finally:
                await store.close()

    app = FastAPI(
        title="Headrace",
        version=version("headrace"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        responses=problems.RESPONSES,
        lifespan=lifespan,
        redoc_url=None,
    )
    problems.install(app)
    app.openapi = lambda: problems.described(FastAPI.openapi(app))  # type: ignore[method-assign]

    def limit_of(scope: Scope) -> tuple[int, str]:
        if scope["path"].rstrip("/") == "/v1/datasets":
            return settings.upload_limit, "HEADRACE_UPLOAD_LIMIT"
        return settings.body_limit, "HEADRACE_BODY_LIMIT"

    app.add_middleware(BodyLimit, limit_of=limit_of)
    for module in (datasets, prompts, runs, events, recipes, workers, files, health, metrics, page):
        app.include_router(module.router)
    return app
