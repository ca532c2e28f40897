"""`/v1/workers`: rollout workers by their heartbeats."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.records import WorkerRecord
from services.gateway.access import AccessDep

router = APIRouter(prefix="/v1/workers", tags=["workers"])


class WorkerList(BaseModel):
    """All workers whose heartbeat has not lapsed."""

    workers: list[WorkerRecord] = Field(description="Each as of its last heartbeat.")


@router.get("", summary="List workers")
async def list_all(
    given: AccessDep,
    pool: Annotated[str | None, Query(description="Only this pool's.")] = None,
) -> WorkerList:
    """Rollout workers, of one pool or of all."""
    return WorkerList(workers=await given.store.workers.list(pool))
