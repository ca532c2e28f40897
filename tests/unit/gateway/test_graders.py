"""`alpha/graders` of OpenAI's API: requests, answers and errors."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai.types.fine_tuning.alpha import GraderRunResponse, GraderValidateResponse

from services.contracts.graders import GraderRun
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai_jobs.graders import (
    EXAMPLE,
    GraderToRun,
    GraderToValidate,
    answer_of,
    place_in,
)
from services.gateway.routes.openai_jobs.graders import run, validate
from services.gateway.settings import GatewaySettings
from services.http import Problem

MULTI = {
    "type": "multi",
    "name": "all",
    "graders": {"a": EXAMPLE, "multi": {**EXAMPLE, "input": [1]}},
    "calculate_output": "a",
}
FINE = GraderRun(
    score=0.75, detail="", scores={}, flags={}, kind="", is_late=False, tokens={}, seconds=0.5
)


def deps_with(answer: Callable[[str, Any], httpx.Response]) -> Any:
    """Return dependencies whose reward service answers a path and a body."""

    def handle(request: httpx.Request) -> httpx.Response:
        return answer(request.url.path, json.loads(request.content))

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return SimpleNamespace(http=client, settings=GatewaySettings())


def no_problems(path: str, body: Any) -> httpx.Response:
    if path == "/v1/verifiers/check":
        return httpx.Response(200, json={"problems": []})
    assert body["item"] == {"answer": "62"}
    return httpx.Response(200, json=FINE.model_dump())


async def test_a_grader_that_can_be_used_comes_back_as_it_was_sent() -> None:
    request = GraderToValidate(grader=EXAMPLE)

    answer = await validate(deps_with(no_problems), request)

    parsed = GraderValidateResponse.model_validate(answer.model_dump(), strict=True)
    assert parsed.to_dict() == {"grader": EXAMPLE}


async def test_a_run_answers_as_openai_does() -> None:
    request = GraderToRun(grader=EXAMPLE, item={"answer": "62"}, model_sample="62")

    answer = await run(deps_with(no_problems), request)

    parsed = GraderRunResponse.model_validate(answer.model_dump(), strict=True)
    assert parsed.reward == 0.75
    assert (parsed.metadata.name, parsed.metadata.type) == ("same", "string_check")
    assert parsed.metadata.scores == {"same": 0.75}
    assert not any(parsed.metadata.errors.to_dict().values())
    assert parsed.metadata.token_usage is None


def test_errors_are_flags_with_their_details() -> None:
    flags = {"python_grader_runtime_error": "line 2: boom", "model_grader_server_error": "404"}
    failed = FINE.model_copy(update={"score": None, "flags": flags, "tokens": {"m": 7}})
    limited = FINE.model_copy(
        update={"score": None, "flags": {"python_grader_server_error": "x"}, "kind": "time_limit"}
    )

    answer, other = answer_of(EXAMPLE, failed), answer_of(EXAMPLE, limited)

    errors = GraderRunResponse.model_validate(answer.model_dump(), strict=True).metadata.errors
    assert {name for name, value in errors.to_dict().items() if value is True} == {*flags}
    assert errors.python_grader_runtime_error_details == "line 2: boom"
    assert errors.api_model_grader_server_error_details == "404"
    assert (answer.reward, answer.metadata.scores) == (0.0, {})
    assert (answer.metadata.token_usage, answer.metadata.sampled_model_name) == (7, "m")
    assert other.metadata.errors.python_grader_server_error_type == "time_limit"


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        ({"grader": "x", "model_sample": "y"}, "grader"),
        ({"model_sample": "y"}, "grader"),
        ({"grader": EXAMPLE}, "model_sample"),
        ({"grader": EXAMPLE, "model_sample": 5}, "model_sample"),
        ({"grader": EXAMPLE, "model_sample": "x", "item": [1]}, "item"),
        ({"grader": EXAMPLE, "model_sample": "x", "reference": "y"}, "reference"),
    ],
)
async def test_a_malformed_request_is_refused_by_name(
    request_body: dict[str, Any], param: str
) -> None:
    with pytest.raises(SessionProblem) as refused:
        await run(deps_with(no_problems), GraderToRun.model_validate(request_body))

    assert refused.value.status == 400
    assert refused.value.error["type"] == "invalid_request_error"
    assert refused.value.param == param


async def test_a_problem_names_its_place_in_the_request() -> None:
    path = "params.grader.multi.graders.multi.string_check.input"

    def answer(asked: str, body: Any) -> httpx.Response:
        assert body["uses"][0]["params"] == {"grader": MULTI}
        problem = {"use": 0, "path": path, "message": "must be text"}
        return httpx.Response(200, json={"problems": [problem]})

    with pytest.raises(
        SessionProblem, match=r"grader\.graders\.multi\.input: must be text"
    ) as refused:
        await validate(deps_with(answer), GraderToValidate(grader=MULTI))

    assert (refused.value.param, refused.value.code) == (
        "grader.graders.multi.input",
        "invalid_grader",
    )
    assert place_in(MULTI, "params") == "grader"
    assert place_in(MULTI, "params.grader.multi.graders.multi.string_check.input.0") == (
        "grader.graders.multi.input.0"
    )


async def test_a_reward_service_that_is_away_is_a_503() -> None:
    with pytest.raises(Problem) as refused:
        await validate(
            deps_with(lambda path, body: httpx.Response(500)), GraderToValidate(grader=EXAMPLE)
        )

    assert refused.value.status == 503
