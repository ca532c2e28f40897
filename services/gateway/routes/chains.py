"""`/v1/chains`: submit, list, show, cancel, resume, delete."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from headrace.wording import predicate
from recipes import merged
from services.contracts.chains import (
    CHAIN,
    ChainRecord,
    ChainState,
    ChainView,
    cancelling,
    resumed,
    viewed,
)
from services.contracts.config import ConfigError
from services.gateway.chains.advance import advance, run_of
from services.gateway.chains.chain_submission import (
    ChainDryRun,
    ChainSubmission,
    accept_chain,
    dry_run_of,
)
from services.gateway.chains.deletion import delete_chain
from services.gateway.dependencies import (
    CHAIN_PROBLEMS,
    CallerDep,
    ChainDep,
    Dependencies,
    Deps,
    RequestTryDep,
)
from services.gateway.paging import Cursor, Limit, Next, page_of
from services.gateway.submission.run_submission import refusal
from services.http import UNCHANGED, Problem, responses, unless_unchanged
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/chains", tags=["chains"])

log = get_logger(__name__)


class ChainList(BaseModel):
    """A page of chains, newest first."""

    chains: list[ChainView] = Field(description="With the states of their steps.")
    next: Next


class Resumption(BaseModel):
    """The body of `POST /v1/chains/{chain}/resume`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"config": {"training": {"tokens_per_microbatch": 2048}}}},
    )

    config: dict[str, Any] = Field(
        default_factory=dict, description="Laid over the config of the step that failed."
    )


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="chains_create",
    summary="Submit a chain",
    responses=responses(
        {422: "A step cannot be used; `problems` lists everything, by step and key"}
    )
    | {200: {"model": ChainDryRun, "description": "With `dry_run`: nothing is queued"}},
)
async def submit(
    deps: Deps,
    submission: ChainSubmission,
    answer: Response,
    caller: CallerDep,
    request_try: RequestTryDep,
    dry_run: Annotated[
        bool, Query(description="Queue nothing: say what each step would be, and what it needs.")
    ] = False,
) -> ChainView | ChainDryRun:
    """Check all steps of a chain and queue them at once. Each step is a run, which starts when the
    one before it has succeeded. A step that fails or is cancelled ends the chain. With `dry_run`
    nothing is queued, and the answer (200) has for each step what a run's dry run has."""
    if dry_run:
        answer.status_code = HTTPStatus.OK
        return await dry_run_of(deps, submission)
    id = f"{CHAIN}{request_try.id}"
    if request_try.is_repeated and (written := await deps.store.chains.get(id)):
        await advance(deps, id)
        return await shown(deps, await deps.store.chains.get(id) or written)
    record, warnings, accepted = await accept_chain(deps, submission)
    made_by = {"submitter": caller.name, "project": caller.project}
    record = record.model_copy(update={**made_by, "id": id})
    await deps.store.chains.add(record)
    log.info("chain queued", chain=record.id, name=record.name, pool=record.pool)
    await advance(deps, record.id)
    view = await shown(deps, await deps.store.chains.get(record.id) or record)
    runs = {step.name: run.record for step, run in zip(record.steps, accepted, strict=True)}
    checked = {
        "warnings": warnings,
        "from_datasets": {name: run.from_datasets for name, run in runs.items()},
        "previews": {name: run.preview for name, run in runs.items() if run.preview},
    }
    return view.model_copy(update=checked)


@router.get(
    "",
    operation_id="chains_list",
    summary="List chains",
    response_model=ChainList,
    responses=UNCHANGED,
)
async def list_all(
    deps: Deps,
    request: Request,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Chains with their steps, newest first, page by page. The answer has an `ETag`, as the list of
    runs has."""
    chains = sorted(await deps.store.chains.all(), key=_newest_first)
    page, following = page_of(chains, _newest_first, limit, cursor)
    views = [await shown(deps, chain) for chain in page]
    return unless_unchanged(request, ChainList(chains=views, next=following))


def _newest_first(chain: ChainRecord) -> tuple[float, str]:
    return -chain.created, chain.id


async def shown(deps: Dependencies, chain: ChainRecord) -> ChainView:
    """Return a chain with the states of its steps' runs."""
    summaries = await deps.store.runs.summaries([step.run for step in chain.steps])
    return viewed(chain, {run.id: run for run in summaries if run is not None})


@router.get(
    "/{chain}",
    operation_id="chains_get",
    summary="Show a chain",
    responses=responses(CHAIN_PROBLEMS),
)
async def show(deps: Deps, chain: ChainDep) -> ChainView:
    """One chain: its state, the reason for it, and the runs of its steps."""
    return await shown(deps, chain)


@router.post(
    "/{chain}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    operation_id="chains_cancel",
    summary="Cancel a chain",
    responses=responses(CHAIN_PROBLEMS | {409: "It has succeeded or failed already"}),
)
async def cancel(
    deps: Deps,
    chain: ChainDep,
    now: Annotated[
        bool, Query(description="End its present run at once, as `now` of a run does.")
    ] = False,
) -> ChainView:
    """Ask a chain to end: its present run is cancelled, and no later step begins. Cancelling twice
    is fine; a chain that has succeeded or failed cannot be cancelled (409)."""
    _, after = await deps.store.chains.change(chain.id, cancelling)
    if after.state in (ChainState.SUCCEEDED, ChainState.FAILED):
        raise Problem(
            HTTPStatus.CONFLICT, f"chain {chain.name} ({chain.id}) is over: it {after.state}"
        )
    if now and (run := await deps.store.runs.get(after.step.run)) and not run.state.final:
        await deps.store.runs.cancel(run.id, now=True)
    log.info("chain cancelled", chain=chain.id, name=chain.name, now=now)
    await advance(deps, chain.id)
    return await shown(deps, await deps.store.chains.get(chain.id) or after)


@router.post(
    "/{chain}/resume",
    status_code=HTTPStatus.CREATED,
    operation_id="chains_resume",
    summary="Resume a chain",
    responses=responses(
        CHAIN_PROBLEMS
        | {
            409: "It has not failed and was not cancelled, or what its step needs is gone",
            422: "The config of its step cannot be used",
        }
    ),
)
async def resume(
    deps: Deps, chain: ChainDep, resumption: Resumption, request_try: RequestTryDep
) -> ChainView:
    """Resume the step that failed or was cancelled: a new run continues it from its last
    checkpoint, or begins it anew if it has no checkpoint."""
    step, run = chain.step, request_try.id
    if request_try.is_repeated and step.run == run:
        await advance(deps, chain.id)
        return await shown(deps, await deps.store.chains.get(chain.id) or chain)
    try:
        config = merged(step.config, resumption.config)
    except ConfigError as error:
        raise refusal(error.problems) from None

    def change(now: ChainRecord) -> ChainRecord:
        return resumed(now, config, run) if now.step.run == step.run else now

    planned = change(chain)
    if planned is not chain:
        await run_of(deps, planned)
        _, after = await deps.store.chains.change(chain.id, change)
    if planned is chain or after.step.run != run:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"chain {chain.name} ({chain.id}) {predicate(chain.state)}: only one that has "
            "failed or was cancelled can be resumed",
        )
    log.info("chain resumed", chain=chain.id, step=step.name, run=run)
    await advance(deps, chain.id)
    return await shown(deps, await deps.store.chains.get(chain.id) or after)


@router.delete(
    "/{chain}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="chains_delete",
    summary="Delete a chain",
    responses=responses(CHAIN_PROBLEMS | {409: "It is not over, or another run needs its runs"}),
)
async def delete(deps: Deps, chain: ChainDep) -> None:
    """Delete a chain that is over, with all its runs: their records, metrics, answers and
    checkpoints. Refused (409) while another run continues one of them."""
    await delete_chain(deps, chain)
    log.info("chain deleted", chain=chain.id, name=chain.name)
