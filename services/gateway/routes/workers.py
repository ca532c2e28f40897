"""`/v1/workers`: rollout workers by their heartbeats; `/v1/load`: how much they have to do."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.variables import POOL_NAME
from services.contracts.records import PoolLoad, WorkerRecord
from services.gateway.dependencies import Deps
from services.gateway.paging import Cursor, Limit, Next, page_of

router = APIRouter(tags=["workers"])


class WorkerList(BaseModel):
    """A page of the workers whose heartbeat has not lapsed, by id."""

    workers: list[WorkerRecord] = Field(description="Each as of its last heartbeat.")
    next: Next


@router.get("/v1/workers", operation_id="workers_list", summary="List workers")
async def list_all(
    deps: Deps,
    pool: Annotated[str | None, Query(description="Only this pool's.")] = None,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> WorkerList:
    """Rollout workers, of one pool or of all, page by page."""
    records = await deps.store.workers.list(pool)
    page, following = page_of(records, lambda worker: (worker.id, worker.pool), limit, cursor)
    return WorkerList(workers=page, next=following)


@router.get("/v1/load", operation_id="loads_get", summary="How much a pool has to do")
async def load(
    deps: Deps,
    pool: Annotated[str, Query(pattern=POOL_NAME, description="Its name.")] = "default",
) -> PoolLoad:
    """For an autoscaler such as KEDA. An unknown pool has nothing to do."""
    return await deps.store.insight.load(pool)
