"""`/v1/workers`: rollout workers by their heartbeats; `/v1/load`: how much they have to do."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.records import PoolLoad, WorkerRecord
from services.gateway.dependencies import Deps
from services.settings import POOL_NAME

router = APIRouter(tags=["workers"])


class WorkerList(BaseModel):
    """All workers whose heartbeat has not lapsed."""

    workers: list[WorkerRecord] = Field(description="Each as of its last heartbeat.")


@router.get("/v1/workers", summary="List workers")
async def list_all(
    deps: Deps,
    pool: Annotated[str | None, Query(description="Only this pool's.")] = None,
) -> WorkerList:
    """Rollout workers, of one pool or of all."""
    return WorkerList(workers=await deps.store.workers.list(pool))


@router.get("/v1/load", summary="How much a pool has to do")
async def load(
    deps: Deps,
    pool: Annotated[str, Query(pattern=POOL_NAME, description="Its name.")] = "default",
) -> PoolLoad:
    """For an autoscaler such as KEDA. An unknown pool has nothing to do."""
    return await deps.store.insight.load(pool)
