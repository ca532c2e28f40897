"""`/v1/datasets/{dataset}/findings`: what the rows of a dataset are like."""

import asyncio
from typing import Annotated

import httpx
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.config.rewards import RewardComponent
from services.contracts.dataset_findings import (
    CountState,
    ReadReferences,
    RowFindings,
    TokenLengths,
    UnreadableReference,
)
from services.contracts.records import DatasetRecord
from services.contracts.scores import CheckRequest, Use
from services.datasets import DatasetError
from services.gateway.dependencies import DATASET_PROBLEMS, DatasetDep, Dependencies, Deps
from services.gateway.reference_checks import (
    CHECK_SECONDS,
    NotChecked,
    ReferenceCheck,
    ask_check,
    reason_of,
)
from services.gateway.submission.run_submission import RunSubmission, accept
from services.gateway.submission.verifier_check import check_named
from services.http import Problem, responses

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

WAIT_SECONDS = 5.0
"""How long a request waits for counts that are not done."""


class DatasetFindings(BaseModel):
    """What the rows of a dataset are like."""

    dataset: str = Field(description="Its name.")
    rows: int = Field(description="Its rows.")
    state: CountState = Field(
        description="`counting`: a large dataset is read now, and `counts` is null; ask again."
    )
    counts: RowFindings | None = Field(description="Counts over all rows.")
    references: list[ReadReferences] = Field(
        description="What each verifier makes of the references: the dataset's own verifiers, and "
        "those that the request names."
    )
    tokens: TokenLengths | None = Field(
        description="Lengths in tokens of the model that the request names: of prompts, as a run "
        "asks them."
    )
    problem: str | None = Field(description="Why something was not counted.")


@router.get(
    "/{dataset}/findings",
    operation_id="datasets_findings_get",
    summary="Lengths, repetitions and unreadable references",
    responses=responses(DATASET_PROBLEMS | {422: "The model or the verifier cannot be used"}),
)
async def findings(
    deps: Deps,
    record: DatasetDep,
    model: Annotated[
        str | None,
        Query(description="Count tokens, too: the model, as `model.path` of a run names it."),
    ] = None,
    verifier: Annotated[
        list[str] | None,
        Query(description="Read all references with this verifier, too.", max_length=10),
    ] = None,
) -> DatasetFindings:
    """Count the rows of a dataset. Lengths, repetitions and references are counted over all rows,
    once, and the counts are kept. Tokens are counted over at most 2,000 rows."""
    rewards = [*(record.defaults.rewards if record.defaults else [])]
    for name in dict.fromkeys(verifier or ()):
        await check_named(deps, name)
        rewards.append(RewardComponent(verifier=name))
    tokens = await _tokens(deps, record, model) if model else None
    checked = asyncio.create_task(_references(deps, record, rewards))
    state: CountState = "failed"
    counts, problem = None, record.damage
    try:
        counts = await deps.counting.wait(record, WAIT_SECONDS)
        state = "counting" if counts is None else "counted"
    except (OSError, DatasetError) as error:
        problem = str(error)
    return DatasetFindings(
        dataset=record.name,
        rows=record.rows,
        state=state,
        counts=counts,
        references=await checked,
        tokens=tokens,
        problem=problem,
    )


async def _tokens(deps: Dependencies, record: DatasetRecord, model: str) -> TokenLengths | None:
    """Count the prompts in tokens of `model`, as a dry run does. Raises Problem 422 for a model
    that cannot be used. Return None if its tokenizer is not on this host."""
    config = {
        "type": "rl",
        "model": {"path": model},
        "data": {"dataset": record.id},
        "rewards": [{"verifier": "exact"}],
    }
    try:
        accepted = await accept(deps, RunSubmission(config=config), rows=range(1))
    except Problem as error:
        detail = error.detail.replace("the run was not queued", "the tokens were not counted")
        raise Problem(error.status, detail, error.problems, error.headers) from None
    counts = accepted.rendering.counts.get("data.dataset")
    if counts is None:
        return None
    return TokenLengths(
        model=model,
        rows=counts.rows,
        min=counts.fewest_tokens,
        median=counts.median_tokens,
        max=counts.most_tokens,
    )


async def _references(
    deps: Dependencies, record: DatasetRecord, rewards: list[RewardComponent]
) -> list[ReadReferences]:
    """Have the reward service read the references with each verifier that needs one."""
    if not rewards:
        return []
    uses = [Use(verifier=reward.verifier, params=reward.params) for reward in rewards]
    try:
        request = CheckRequest(uses=uses)
        response = await ask_check(deps.settings, deps.http, request, CHECK_SECONDS)
    except (httpx.HTTPError, ValueError) as error:
        reason = f"the reward service {reason_of(error)}"
        return [_unread(use, reason) for use in uses]
    unusable = {problem.use: problem.message for problem in response.problems}
    results: list[ReadReferences | ReferenceCheck] = []
    for number, use in enumerate(uses):
        if number in unusable:
            results.append(_unread(use, unusable[number]))
        elif number not in response.takes_any:
            keep = number not in response.own_verifier_uses
            try:
                results.append(await deps.references.check(record, use, keep))
            except NotChecked as error:
                results.append(_unread(use, str(error)))
    if tasks := [each.task for each in results if isinstance(each, ReferenceCheck)]:
        await asyncio.wait(tasks, timeout=WAIT_SECONDS)
    return [_read(each) if isinstance(each, ReferenceCheck) else each for each in results]


def _unread(use: Use, reason: str) -> ReadReferences:
    return ReadReferences(
        verifier=use.verifier, state="failed", rows=0, unreadable=0, examples=[], problem=reason
    )


def _read(check: ReferenceCheck) -> ReadReferences:
    """Return the state of a check."""
    report, task = check.report, check.task
    state: CountState = "counting"
    problem = None
    if task.done():
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        state, problem = ("failed", str(error)) if error else ("counted", None)
    return ReadReferences(
        verifier=report.verifier,
        state=state,
        rows=report.checked,
        unreadable=report.unreadable,
        examples=[UnreadableReference(row=row, reason=reason) for row, reason in report.first],
        remark=report.doubt(),
        problem=problem,
    )
