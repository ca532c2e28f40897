"""`/v1/runs/{run}/audit`: what became of every task of a run."""

import anyio.to_thread
from fastapi import APIRouter

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses
from services.recovery.lost_writes import lost_commit
from services.store import Audit

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run}/audit", summary="Audit a run", responses=responses(RUN_PROBLEMS))
async def audit(deps: Deps, record: RunDep) -> Audit:
    """Account for every task of a run, and of the runs that it continues, from the ledger and the
    stores, not from counters. `lost` and `duplicated` are always 0; `unknown` counts tasks whose
    entries Redis has lost."""
    account = await deps.store.ledger.audit(record.id)
    if problem := await anyio.to_thread.run_sync(
        lost_commit, deps.volume.root, record, deps.settings.redis_url.get_secret_value()
    ):
        account.unknown.append(problem)
    return account
