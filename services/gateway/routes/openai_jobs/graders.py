"""`alpha/graders` of OpenAI's fine-tuning API: checks graders, and tries them on an answer."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter

from services.contracts.graders import GraderRun, GraderRunRequest
from services.contracts.scores import CheckRequest, CheckResponse, Use
from services.gateway.dependencies import Dependencies, Deps
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.graders import (
    GraderRunAnswer,
    GraderToRun,
    GraderToValidate,
    ValidatedGrader,
    answer_of,
    place_in,
)
from services.gateway.reward_service import AWAY, SCORE_SECONDS, ask
from services.http import Problem

ERRORS: dict[int | str, str] = {
    400: "The grader or the body cannot be used; `message` says why, and `param` where",
    503: AWAY,
}
CHECK_SECONDS = 10.0

router = APIRouter(
    prefix="/openai/v1/fine_tuning/alpha/graders",
    tags=["fine-tuning"],
    responses=openai_errors(ERRORS),
)


@router.post("/validate", operation_id="graders_validate", summary="Validate a grader")
async def validate(deps: Deps, request: GraderToValidate) -> ValidatedGrader:
    """Check a grader object: its fields, templates, formula and Python program, and whether its
    models are there. Nothing is graded."""
    grader = _grader(request)
    await _check(deps, grader)
    return ValidatedGrader(grader=grader)


@router.post("/run", operation_id="graders_run", summary="Run a grader")
async def run(deps: Deps, request: GraderToRun) -> GraderRunAnswer:
    """Grade one answer. An error of the grader has the reward 0 and a flag in `metadata.errors`; in
    a run such an answer has no reward."""
    grader, item = _grader(request), {} if request.item is None else request.item
    if not isinstance(request.model_sample, str):
        raise _refusal("model_sample must be text", "model_sample")
    if not isinstance(item, dict):
        raise _refusal("item must be a mapping", "item")
    await _check(deps, grader)
    params = {"grader": grader}
    body = GraderRunRequest(params=params, item=item, sample=request.model_sample)
    answer = await _asked(deps, "/v1/graders/run", SCORE_SECONDS, body.model_dump())
    return answer_of(grader, GraderRun.model_validate(answer))


def _grader(request: GraderToValidate) -> dict[str, Any]:
    if not isinstance(request.grader, dict):
        raise _refusal("grader must be a grader object", "grader")
    unknown = sorted(request.model_extra or ())
    if unknown:
        raise _refusal(f"{unknown[0][:80]!r} is not known here", unknown[0][:80])
    return request.grader


async def _check(deps: Dependencies, grader: dict[str, Any]) -> None:
    """Raise SessionProblem (400) unless the reward service can use a grader."""
    use = Use(verifier="grader", params={"grader": grader})
    body = CheckRequest(uses=[use]).model_dump()
    answer = await _asked(deps, "/v1/verifiers/check", CHECK_SECONDS, body)
    problems = CheckResponse.model_validate(answer).problems
    if problems:
        places = [place_in(grader, problem.path) for problem in problems]
        named = zip(places, problems, strict=True)
        message = "; ".join(f"{place}: {problem.message}" for place, problem in named)
        raise _refusal(message, places[0])


async def _asked(deps: Dependencies, path: str, seconds: float, body: dict[str, Any]) -> Any:
    try:
        return await ask(deps, "POST", path, seconds, body)
    except Problem as problem:
        if problem.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        raise _refusal(problem.detail, "grader") from None


def _refusal(message: str, param: str) -> SessionProblem:
    return SessionProblem(HTTPStatus.BAD_REQUEST, message, param, "invalid_grader")
