"""`/v1/runs/{run}/samples`: completions with their rewards and the verifiers' reasons."""

from functools import partial
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.groups.sampled_answer import SampledAnswer
from services.contracts.records import RunState
from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.gateway.paging import Cursor, Limit, Next, cursor_at
from services.gateway.routes.runs.rollouts import FOLDER, READERS, place_of_cursor, why_none
from services.http import responses
from services.rollouts.sampled import sampled_answers

router = APIRouter(prefix="/v1/runs", tags=["runs"])


class RunSamples(BaseModel):
    """Sampled answers of a run, newest first."""

    run: str = Field(description="The run's id.")
    samples: list[SampledAnswer] = Field(description="Up to four of each batch.")
    judged: list[SampledAnswer] = Field(
        description="The newest answers that were judged, trained or not, of a run that has failed "
        "or has no trained ones yet."
    )
    none_because: str | None = Field(
        description="Why there are no answers; null if there are some.",
        examples=["a run of kind sft samples no answers"],
    )
    next: Next


@router.get(
    "/{run}/samples",
    operation_id="run_samples_list",
    summary="Sampled answers",
    responses=responses(RUN_PROBLEMS),
)
async def samples(
    deps: Deps,
    record: RunDep,
    step: Annotated[int | None, Query(ge=1, lt=1 << 32, description="Only of this step.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> RunSamples:
    """Some completions of each trained batch with their rewards, newest first: the best and the
    worst of one prompt, and others. `GET /v1/runs/{run}/rollouts` has all that are kept."""
    folder = deps.volume.path(f"runs/{record.id}/{FOLDER}")
    read = partial(sampled_answers, folder, step, limit, place_of_cursor(cursor))
    rows, following = await anyio.to_thread.run_sync(read, limiter=READERS)
    judged: list[SampledAnswer] = []
    if cursor is None and step is None and (not rows or record.state is RunState.FAILED):
        judged = (await deps.store.judged.newest(record.id))[:limit]
    next_page = None if following is None else cursor_at(following)
    of = f" of step {step}" if step else ""
    why = why_none(deps, record) or f"no answers{of}: they are kept when they are judged"
    none_because = None if rows or judged else why
    return RunSamples(
        run=record.id, samples=rows, judged=judged, none_because=none_because, next=next_page
    )
