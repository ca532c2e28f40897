"""`/v1/workers`: rollout workers by their heartbeats."""

from fastapi import APIRouter
from pydantic import BaseModel

from services.contracts.records import WorkerRecord
from services.gateway.access import AccessDep

router = APIRouter(prefix="/v1/workers", tags=["workers"])


class WorkerList(BaseModel):
    """All workers whose heartbeat has not lapsed."""

    workers: list[WorkerRecord]


@router.get("", summary="List workers")
async def list_all(given: AccessDep, pool: str | None = None) -> WorkerList:
    """Rollout workers, of one pool or of all."""
    return WorkerList(workers=await given.store.workers.list(pool))
