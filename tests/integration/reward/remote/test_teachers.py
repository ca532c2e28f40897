"""`/v1/teachers`: requests to a vLLM server, and the results of its replies."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.upstream import Answer, Upstream

ASKED = {"teacher": "big", "prompt": [7, 8], "completion": [1, 2]}


def scored(
    change: Callable[[list[Any]], Any] = lambda said: said,
) -> Callable[[str, Any], Answer]:
    """A server that gives the token at place p of id t the log-probability −p − t/10."""

    def answer(path: str, body: Any) -> Answer:
        said = [
            {str(token): {"logprob": -place - token / 10, "rank": 1, "decoded_token": "x"}}
            for place, token in enumerate(body["prompt"])
        ]
        return 200, {"choices": [{"prompt_logprobs": change([None, *said[1:]])}]}

    return answer


async def test_a_completion_is_scored_after_its_prompt(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = scored()

    response = await client.post("/v1/teachers/score", json={**ASKED, "model": "large"})

    assert response.json() == {"logprobs": [-2.1, -3.2]}
    ((path, body, authorization),) = upstream.asked
    assert (path, authorization) == ("/v1/completions", "Bearer secret-3")
    assert (body["prompt"], body["model"]) == ([7, 8, 1, 2], "large")
    assert (body["prompt_logprobs"], body["max_tokens"]) == (0, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said: said[:-1], r"'big' scored \d of \d tokens: is it a vLLM server"),
        (lambda said: None, "'big' answers /v1/completions as no vLLM server does"),
        (lambda said: [*said[:-1], {"99": {"logprob": -1.0}}], "another token than"),
        (
            lambda said: [*said[:-1], {key: {"logprob": -1e999} for key in said[-1]}],
            "-inf for token .* which is no log-probability",
        ),
        (
            lambda said: [*said[:-1], {key: {"logprob": 12.5} for key in said[-1]}],
            "12.5 for token .* which is no log-probability: .* without --logprobs-mode",
        ),
    ],
)
async def test_an_answer_that_scores_nothing_is_refused(
    change: Callable[[list[Any]], Any],
    reason: str,
    client: httpx.AsyncClient,
    upstream: Upstream,
) -> None:
    upstream.answer = scored(change)

    response = await client.post("/v1/teachers/score", json=ASKED)

    assert response.status_code == 422
    assert re.search(reason, response.json()["detail"])


async def test_a_teacher_that_is_overloaded_is_asked_again_and_then_later(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    refused = iter([429, 503])

    def sometimes(path: str, body: Any) -> Answer:
        code = next(refused, 200)
        return scored()(path, body) if code == 200 else (code, {"error": "busy"})

    upstream.answer = sometimes
    assert (await client.post("/v1/teachers/score", json=ASKED)).status_code == 200

    upstream.answer = lambda path, body: (503, {"error": "loading"})
    response = await client.post("/v1/teachers/score", json=ASKED)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "'big' answers 503" in response.json()["detail"]


@pytest.mark.parametrize(
    ("code", "said", "status", "detail"),
    [
        (400, "maximum context length is 4", 422, "maximum context length is 4"),
        # The operator can mend it: groups wait.
        (401, "wrong key", 503, "'big' answers 401"),
    ],
)
async def test_a_teachers_refusal_is_reported_with_its_reason(
    code: int, said: str, status: int, detail: str, client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = lambda path, body: (code, {"error": said})

    response = await client.post("/v1/teachers/score", json=ASKED)

    assert response.status_code == status
    assert detail in response.json()["detail"]


async def test_a_teacher_writes_the_text_of_tokens(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = lambda path, body: (200, {"prompt": f"{body['tokens']} {path}"})

    request = {"teacher": "big", "tokens": [4, 5]}
    response = await client.post("/v1/teachers/text", json=request)

    assert response.json() == {"text": "[4, 5] /detokenize"}


async def test_a_teacher_is_named_and_never_an_address(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    for name in ("http://10.0.0.1:8000", "bgi"):
        response = await client.post("/v1/teachers/score", json={**ASKED, "teacher": name})
        assert response.status_code == 503  # the operator may name it yet: groups wait
        assert f"there is no teacher '{name}'; there is big" in response.json()["detail"]
        check: dict[str, Any] = {"uses": [], "teacher": name}
        checked = (await client.post("/v1/verifiers/check", json=check)).json()
        assert f"there is no teacher '{name}'" in checked["teacher"]
    assert upstream.asked == []
    known = await client.post("/v1/verifiers/check", json={"uses": [], "teacher": "big"})
    empty: dict[str, Any] = {"problems": [], "remarks": [], "takes_any": []}
    empty["own_verifier_uses"] = []
    assert known.json() == {**empty, "teacher": None}


async def test_teachers_are_asked_with_the_services_key_alone(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/teachers/score", json=ASKED, headers={"authorization": "Bearer wrong"}
    )
    assert response.status_code == 401
