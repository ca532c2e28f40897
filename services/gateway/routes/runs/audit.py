"""`/v1/runs/{run}/audit`: what became of every task of a run."""

import anyio.to_thread
from fastapi import APIRouter

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses
from services.recovery.lost_writes import lost_commit
from services.recovery.record_copies import newest_commit
from services.store import Audit

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get(
    "/{run}/audit",
    operation_id="runs_audit",
    summary="Audit a run",
    responses=responses(RUN_PROBLEMS),
)
async def audit(deps: Deps, record: RunDep) -> Audit:
    """Account for every task of a run, and of the runs that it continues, from the ledger and the
    stores, not from counters. `lost` and `duplicated` are always 0; `unknown` counts tasks whose
    entries Redis has lost."""
    data, redis_url = deps.volume.root, deps.settings.redis_url.get_secret_value()
    newest = await anyio.to_thread.run_sync(newest_commit, data, record.id)
    run = await deps.store.runs.get(record.id) or record
    account = await deps.store.ledger.audit(record.id)
    if problem := lost_commit(data, run, newest, redis_url):
        account.unknown.append(problem)
    return account
