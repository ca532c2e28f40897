"""`/healthz` and `/readyz`."""

import tempfile
from http import HTTPStatus
from typing import Literal

import anyio.to_thread
from fastapi import APIRouter
from pydantic import BaseModel, Field
from redis.exceptions import RedisError

from services.contracts.schema import SchemaMismatch
from services.gateway.dependencies import Dependencies, Deps
from services.gateway.problems import RETRY_AFTER
from services.http import Problem, responses
from services.store import RedisFull, UnsafeRedis

router = APIRouter(tags=["operation"])

PATIENCE = 2.0
"""Seconds to wait for Redis."""


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = Field("ok", description="Always this: else the answer is an error.")


@router.get("/healthz", operation_id="health_get", summary="Alive")
async def healthz() -> Health:
    """The process answers. Says nothing about what it depends on."""
    return Health()


@router.get(
    "/readyz",
    operation_id="readiness_get",
    summary="Ready",
    responses=responses({503: "Not ready; `detail` says why"}),
)
async def readyz(deps: Deps) -> Health:
    """Redis answers and keeps what it acknowledges, and the data volume can be written; else 503
    with the reason."""
    problems = []
    if reason := await _redis_problem(deps):
        problems.append(("redis", reason))
    if reason := await anyio.to_thread.run_sync(_volume_problem, deps):
        problems.append(("data", reason))
    if problems:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "; ".join(reason for _, reason in problems),
            problems,
            {"Retry-After": str(RETRY_AFTER)},
        )
    return Health()


async def _redis_problem(deps: Dependencies) -> str | None:
    try:
        with anyio.fail_after(PATIENCE):
            await deps.store.ping()
            if not deps.settings.allow_unsafe_redis:
                await deps.store.check_durability()
            await deps.store.check_schema()
    except (UnsafeRedis, SchemaMismatch) as error:
        return str(error)
    except (RedisError, OSError, TimeoutError) as error:
        if isinstance(error, RedisFull):
            return str(error)
        return f"Redis does not answer ({type(error).__name__})"
    return None


def _volume_problem(deps: Dependencies) -> str | None:
    root = deps.volume.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return f"the data volume {root} cannot be written: {error.strerror}"
    return None
