"""`/v1/runs/{run}/audit`: what became of every task of a run."""

from fastapi import APIRouter

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses
from services.store import Audit

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run}/audit", summary="Audit a run", responses=responses(RUN_PROBLEMS))
async def audit(deps: Deps, record: RunDep) -> Audit:
    """Every task of a run and of those that it continues, recomputed from the ledger and the
    stores, not from counters. `lost` and `duplicated` are always 0."""
    return await deps.store.ledger.audit(record.id)
