"""`/v1/verifiers`: the verifiers of the reward service, and those that admins add."""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from pydantic import Field

from services.contracts.scores import ScoreItem, ScoreRequest, ScoreResponse
from services.contracts.verifiers import (
    AnswerToScore,
    MadeVerifier,
    NewVerifier,
    ScoredAnswer,
    VerifierInfo,
    VerifierList,
)
from services.gateway.dependencies import Dependencies, Deps, find_dataset
from services.gateway.paging import Cursor, Limit, Next, page_of
from services.gateway.reward_service import AWAY, SCORE_SECONDS, ask
from services.http import Problem, responses

router = APIRouter(prefix="/v1/verifiers", tags=["verifiers"])

LIST_SECONDS = 10.0
TRIAL_SECONDS = 90.0
"""For the reward service to try a file, which it gives up after a minute."""

Reference = Annotated[
    str, Path(description="A verifier's name; NAME@VERSION: a version that was added.")
]


class VerifierPage(VerifierList):
    """A page of verifiers."""

    next: Next
    verifiers: list[VerifierInfo] = Field(description="By name.")


@router.get(
    "", operation_id="verifiers_list", summary="List verifiers", responses=responses({503: AWAY})
)
async def list_all(deps: Deps, limit: Limit = 200, cursor: Cursor = None) -> VerifierPage:
    """The verifiers that a reward may name, with the JSON Schema of their parameters, page by page.
    Versions of a verifier that was added stand beside it, as NAME@VERSION."""
    answer = await ask(deps, "GET", "/v1/verifiers", LIST_SECONDS)
    known = sorted(VerifierList.model_validate(answer).verifiers, key=lambda info: info.name)
    page, following = page_of(known, lambda info: (info.name,), limit, cursor)
    return VerifierPage(verifiers=page, next=following)


@router.post(
    "",
    operation_id="verifiers_create",
    status_code=HTTPStatus.CREATED,
    summary="Add a verifier",
    responses=responses(
        {
            403: "The key's role is not `admin`, or the operator of the reward service does not "
            "allow it",
            422: "The file does not load, its tests fail, or its name is taken; `problems` lists "
            "the tests",
            503: AWAY,
        }
    ),
)
async def create(deps: Deps, new: NewVerifier) -> MadeVerifier:
    """Add a Python file as the next version of its verifier: a class, or a plain function. The
    reward service loads it and runs its functions `test_…`; if one fails, nothing is added. Then it
    starts again in a few seconds, while workers wait. Off unless the reward service's environment
    has HEADRACE_VERIFIER_UPLOADS=true."""
    answer = await ask(deps, "POST", "/v1/verifiers", TRIAL_SECONDS, new.model_dump())
    return MadeVerifier.model_validate(answer)


@router.delete(
    "/{verifier}",
    operation_id="verifiers_delete",
    status_code=HTTPStatus.NO_CONTENT,
    summary="Remove a verifier that was added",
    responses=responses(
        {
            403: "As for adding one",
            404: "No such verifier was added",
            503: AWAY,
        }
    ),
)
async def delete(deps: Deps, verifier: Reference) -> None:
    """Remove NAME with all of its versions, or NAME@VERSION."""
    await ask(deps, "DELETE", f"/v1/verifiers/{quote(verifier, safe='@')}", LIST_SECONDS)


@router.post(
    "/{verifier}/score",
    operation_id="verifiers_score",
    summary="Score an answer",
    responses=responses(
        {
            404: "There is no such dataset, or it has no such row",
            422: "There is no such verifier, or it takes other parameters",
            503: AWAY,
        }
    ),
)
async def score(deps: Deps, verifier: Reference, request: AnswerToScore) -> ScoredAnswer:
    """Score one answer by a row of a dataset, or by the reference in the request. Nothing is
    kept."""
    item = await _item(deps, verifier, request)
    body = ScoreRequest(items=[item]).model_dump()
    answer = await ask(deps, "POST", "/v1/score", SCORE_SECONDS, body)
    (result,) = ScoreResponse.model_validate(answer).results
    return ScoredAnswer(**result.model_dump(), prompt=item.prompt, answer=item.answer)


async def _item(deps: Dependencies, verifier: str, request: AnswerToScore) -> ScoreItem:
    """Return the item to score. Raises Problem 404."""
    item = ScoreItem(
        id="0",
        verifier=verifier,
        prompt=request.prompt or "",
        completion=request.completion,
        answer=request.answer,
        params=request.params,
    )
    if request.dataset is None:
        return item
    dataset = await find_dataset(deps, request.dataset)
    try:
        row = await deps.rows.row(dataset, request.row)
    except IndexError:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"dataset {dataset.name} has no row {request.row}: it has rows 0 to {dataset.rows - 1}",
        ) from None
    changes = {
        "prompt": row.prompt if request.prompt is None else request.prompt,
        "answer": row.answer if request.answer is None else request.answer,
        "columns": row.columns,
        "row": request.row,
    }
    return item.model_copy(update=changes)
