"""`/v1/runs/{run}/audit`: what became of every draw of a run."""

from fastapi import APIRouter

from services.gateway.access import RUN_PROBLEMS, AccessDep, RunDep
from services.http import responses
from services.store import Audit

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run}/audit", summary="Audit a run", responses=responses(RUN_PROBLEMS))
async def audit(given: AccessDep, record: RunDep) -> Audit:
    """Every draw of a run and of those that it continues, recomputed from the ledger and the
    stores, not from counters. `lost` and `duplicated` are always 0."""
    return await given.store.ledger.audit(record.id)
