"""`/v1/runs/{run}/why`: what holds a run up."""

from fastapi import APIRouter

from services.contracts.why import Why
from services.diagnosis import diagnose
from services.gateway.access import RUN_PROBLEMS, AccessDep, RunDep
from services.http import responses

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/{run}/why", summary="Why a run is slow or stuck", responses=responses(RUN_PROBLEMS))
async def why(given: AccessDep, record: RunDep) -> Why:
    """The named bottleneck and its reason in words, the draw that has been in flight longest with
    its timeline, the pool's workers and learner, and the newest warnings and errors."""
    return diagnose(await given.store.insight.situation(record))
