"""`/v1/runs/{run}/report` and `/v1/chains/{chain}/report`: a report as a page."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse

from services.contracts.chains import ChainRecord
from services.contracts.records import RunRecord
from services.gateway.dependencies import (
    CHAIN_PROBLEMS,
    RUN_PROBLEMS,
    ChainDep,
    Deps,
    RunDep,
    find_run,
)
from services.gateway.reports import ReportFailed
from services.http import Problem, responses

router = APIRouter(prefix="/v1", tags=["runs"])

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'self'; sandbox",
    "Cache-Control": "no-cache",
}
"""The page has no script, and shows texts of a policy. The run's view has it in a frame."""
PAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The page", "content": {"text/html": {}}}
}
NOTHING: dict[int | str, str] = {
    409: "Nothing has been trained yet, or the report cannot be written"
}


@router.get(
    "/runs/{run}/report",
    operation_id="run_reports_get",
    summary="Report of a run",
    response_class=FileResponse,
    responses=PAGE | responses(RUN_PROBLEMS | NOTHING),
)
async def of_run(
    deps: Deps,
    record: RunDep,
    against: Annotated[
        str | None, Query(description="Id or name of a run to compare it with.")
    ] = None,
) -> FileResponse:
    """A page that needs no other file: results, curves, answers, what the config changes, where the
    time went, and how to repeat the run. An unfinished run has a report of its state now."""
    return await _page(deps, record, await find_run(deps, against) if against else None)


@router.get(
    "/chains/{chain}/report",
    operation_id="chain_reports_get",
    summary="Report of a chain",
    response_class=FileResponse,
    responses=PAGE | responses(CHAIN_PROBLEMS | NOTHING),
)
async def of_chain(deps: Deps, chain: ChainDep) -> FileResponse:
    """One page with all steps of the chain."""
    return await _page(deps, chain)


async def _page(
    deps: Deps, record: RunRecord | ChainRecord, against: RunRecord | None = None
) -> FileResponse:
    try:
        page = await deps.reports.page_of(record, against)
    except (ReportFailed, OSError) as error:
        raise Problem(HTTPStatus.CONFLICT, f"the report was not written: {error}") from None
    if page is None:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{record.name} ({record.id}) has trained nothing that could be reported",
        )
    return FileResponse(page, media_type="text/html; charset=utf-8", headers=HEADERS)
