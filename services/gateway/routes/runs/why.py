"""`/v1/runs/{run}/why`: why a run is slow or stuck."""

from fastapi import APIRouter

from services.contracts.prices import Prices
from services.contracts.why import Why
from services.diagnosis.diagnose import diagnose
from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses
from services.store.unreadable import reading

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get(
    "/{run}/why",
    operation_id="runs_diagnose",
    summary="Why a run is slow or stuck",
    responses=responses(RUN_PROBLEMS),
)
async def why(deps: Deps, record: RunDep) -> Why:
    """The named bottleneck and its reason in words, the task that has been in flight longest,
    the pool's workers and learner, and the newest warnings and errors."""
    with reading(f"run {record.id}"):
        price = deps.settings.gpu_hour_price
        prices = Prices.parse(price) if price else None
        return diagnose(await deps.store.insight.situation(record), prices)
