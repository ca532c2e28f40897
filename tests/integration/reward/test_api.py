"""The HTTP contract: scores, verifiers, and the replies to bad requests."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

JSON = {"content-type": "application/json"}


def item(number: int, completion: str, answer: object = "72", **more: Any) -> dict[str, Any]:
    return {
        "id": f"item-{number}",
        "verifier": "math",
        "completion": completion,
        "answer": answer,
        **more,
    }


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["title"]
    return body


async def test_results_come_in_the_order_of_the_items(client: httpx.AsyncClient) -> None:
    items = [
        item(0, "The answer is 72."),
        item(1, "The answer is 71."),
        item(2, ""),
        item(3, "\\boxed{???}"),
        item(4, "72", answer="see page 3 of the book"),
        item(5, "yes", answer="yes", verifier="exact"),
        item(6, "\\boxed{(x+1)^2}", answer="x^2+2x+1"),
    ]

    response = await client.post("/v1/score", json={"items": items})

    assert response.status_code == 200
    results = response.json()["results"]
    assert [(result["id"], result["status"], result["reward"]) for result in results] == [
        ("item-0", "correct", 1.0),
        ("item-1", "wrong", 0.0),
        ("item-2", "no_answer", 0.0),
        ("item-3", "unparsable", 0.0),
        ("item-4", "error", None),
        ("item-5", "correct", 1.0),
        ("item-6", "correct", 1.0),
    ]
    assert "see page 3 of the book" in results[4]["detail"]


@pytest.mark.usefixtures("isolation")
async def test_a_program_of_the_policy_is_run_in_the_sandbox(client: httpx.AsyncClient) -> None:
    async def said(code: str, **more: Any) -> str:
        response = await client.post("/v1/python", json={"code": code, **more})
        assert response.status_code == 200, response.text
        return str(response.json()["output"])

    assert await said("print(6 * 7)") == "42\n"
    failed = await said("print('half')\n1 / 0")
    assert failed.startswith("half\nTraceback")
    assert failed.endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    # It needs no CPU, for which it might wait too long on a busy machine.
    assert await said("import time\ntime.sleep(100)", seconds=4) == "[time_limit]"
    long = await said("print('x' * 100_000)")
    assert len(long) == 1 << 16
    problem(await client.post("/v1/python", json={"code": "x" * 70_000}), 422)
    problem(await client.post("/v1/python", json={"code": "1", "seconds": 1e9}), 422)


async def test_a_reference_that_cannot_be_used_is_named_by_its_row(
    client: httpx.AsyncClient,
) -> None:
    items = [item(0, "72", answer="see page 3", row=17), item(1, "72", row=18)]

    broken, fine = (await client.post("/v1/score", json={"items": items})).json()["results"]

    assert broken["detail"].startswith("dataset row 17: reference answer 'see page 3' is no number")
    assert "row" not in fine["detail"]


async def test_many_requests_of_many_items_each_get_their_own(client: httpx.AsyncClient) -> None:
    for batch in range(5):
        numbers = range(100 * batch, 100 * batch + 64)
        items = [item(number, f"so {number}", answer=number - number % 2) for number in numbers]

        response = await client.post("/v1/score", json={"items": items})

        rewards = [result["reward"] for result in response.json()["results"]]
        assert rewards == [1.0, 0.0] * 32


async def test_a_request_without_items_has_no_results(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/score", json={"items": []})

    assert response.json() == {"results": []}


async def test_verifiers_are_listed_with_their_parameters(client: httpx.AsyncClient) -> None:
    verifiers = (await client.get("/v1/verifiers")).json()["verifiers"]

    by_name = {verifier["name"]: verifier for verifier in verifiers}
    assert {
        *("math", "exact", "choice", "contains", "regex", "json_schema", "code"),
        *("format", "xml_format", "length", "repetition", "language"),
        *("countdown", "ifeval", "reasoning_gym"),
        *("judge", "model", "grader", "gate", "bad"),
    } == set(by_name)
    assert by_name["json_schema"]["params"]["properties"]["schema"]["description"]
    math = by_name["math"]
    assert math["description"]
    assert math["params"]["properties"]["timeout"]["default"] == 5.0
    assert math["params"]["additionalProperties"] is False


async def test_uses_are_checked_before_anything_is_scored(client: httpx.AsyncClient) -> None:
    uses = [
        {"verifier": "math", "params": {"strict": True}},
        {"verifier": "math", "params": {"stric": True}},
        {"verifier": "maths"},
        {"verifier": "judge", "params": {}},
        {"verifier": "length", "params": {"minimum": 9, "maximum": 2}},
    ]
    response = await client.post("/v1/verifiers/check", json={"uses": uses})

    assert response.status_code == 200
    problems = response.json()["problems"]
    assert [(problem["use"], problem["path"]) for problem in problems] == [
        *((1, "params.stric"), (2, "verifier"), (3, "params"), (4, "params"))
    ]
    said = [problem["message"] for problem in problems]
    assert "did you mean 'strict'?" in said[0]
    assert "did you mean 'math'?" in said[1]
    assert "--judges" in said[2]


async def test_patterns_and_schemas_are_read_before_anything_is_scored(
    client: httpx.AsyncClient,
) -> None:
    # A set of nearly all characters, 1,900 times: Python reads it for 20 s.
    endless = "(?i)" + "[!-\U0010ffff]" * 1900
    uses = [
        {"verifier": "regex", "params": {"pattern": "a|b"}},
        {"verifier": "regex", "params": {"pattern": "("}},
        {"verifier": "regex", "params": {"pattern": endless}},
        {"verifier": "regex", "params": {}},
        {"verifier": "maths"},
        {"verifier": "json_schema", "params": {"schema": {"type": "integer"}}},
        {"verifier": "json_schema", "params": {"schema": {"items": {"$ref": "#/none"}}}},
        {"verifier": "json_schema", "params": {"schema": {"const": "\ud800"}}},
    ]
    # Not httpx's own JSON: half a surrogate pair has no UTF-8.
    body = json.dumps({"uses": uses}).encode()

    response = await client.post("/v1/verifiers/check", content=body, headers=JSON)

    problems = response.json()["problems"]
    assert [(problem["use"], problem["path"]) for problem in problems] == [
        *((1, "params.pattern"), (2, "params.pattern"), (4, "verifier")),
        *((6, "params.schema"), (7, "params")),
    ]
    said = [problem["message"] for problem in problems]
    assert said[0].startswith("'(' is no regular expression: missing )")
    assert said[1] == "checking the reference alone did not finish in 5 s"
    assert "refers to what is not in it" in said[3]


async def test_references_that_cannot_be_scored_are_named_by_their_row(
    client: httpx.AsyncClient,
) -> None:
    test = "def check(candidate):\n    assert candidate(1) == 2\n"
    uses = [
        {
            "verifier": "math",
            "rows": [{"answer": "72"}, {"answer": {"value": 72}}, {"answer": "see page 3"}, {}],
        },
        {"verifier": "length", "rows": [{"answer": None}]},
        {
            "verifier": "code",
            "rows": [{"answer": test, "columns": {"entry_point": "f"}}, {"answer": test}],
        },
        {"verifier": "regex", "params": {"pattern": "a"}, "rows": [{"answer": "("}]},
        {"verifier": "regex", "rows": [{"answer": "("}]},
    ]
    response = await client.post("/v1/verifiers/check", json={"uses": uses})

    problems = response.json()["problems"]
    assert [(problem["use"], problem["row"], problem["path"]) for problem in problems] == [
        *((0, row, f"rows.{row}") for row in (1, 2, 3)),
        *((2, 1, "rows.1"), (4, 0, "rows.0")),
    ]
    assert "'see page 3' is no number and no expression" in problems[1]["message"]
    assert "entry_point" in problems[3]["message"]
    assert response.json()["takes_any"] == [1, 3]


async def test_columns_of_the_row_reach_the_verifier(client: httpx.AsyncClient) -> None:
    one = item(0, "columns", answer=None, verifier="bad", columns={"unit": "cm", "big": 10**30})

    response = await client.post("/v1/score", json={"items": [one]})

    assert response.json()["results"][0]["detail"] == "{'unit': 'cm', 'big': '1" + "0" * 30 + "'}"


async def test_checks_do_not_count_as_scored_items(client: httpx.AsyncClient) -> None:
    before = (await client.get("/metrics")).text

    uses = [{"verifier": "regex", "params": {"pattern": "a" * n}} for n in range(1, 4)]
    await client.post("/v1/verifiers/check", json={"uses": uses})

    def items(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("headrace_reward_items_t")]

    assert items((await client.get("/metrics")).text) == items(before)


async def test_an_unknown_verifier_is_named_with_the_nearest_known(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post(
        "/v1/score", json={"items": [item(0, "1"), item(1, "1", verifier="maths")]}
    )

    body = problem(response, 422)
    assert "items.1.verifier (item 'item-1')" in body["detail"]
    assert "did you mean 'math'?" in body["detail"]
    assert "GET /v1/verifiers" in body["detail"]
    assert body["problems"][0]["item"] == "item-1"


@pytest.mark.parametrize(
    ("params", "path", "message"),
    [
        ({"stric": True}, "items.0.params.stric", "did you mean 'strict'?"),
        ({"timeout": 0}, "items.0.params.timeout", "more than 0"),
        ({"on_timeout": "none"}, "items.0.params.on_timeout", "a number"),
    ],
)
async def test_bad_parameters_are_named(
    client: httpx.AsyncClient, params: dict[str, Any], path: str, message: str
) -> None:
    response = await client.post("/v1/score", json={"items": [item(0, "1", params=params)]})

    (error,) = problem(response, 422)["problems"]
    assert error["path"] == path
    assert message in error["message"]


async def test_two_items_of_one_id_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/score", json={"items": [item(0, "1"), item(0, "2")]})

    assert "occurs more than once" in problem(response, 422)["detail"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "the request has no body"),
        (b'{"items": [', 400, "the body is not JSON"),
        (b'{"items": [{"id": "a"}]}', 422, "items.0.verifier"),
        (b'{"itmes": []}', 422, "itmes"),
        (b"[1]", 422, "must be a mapping"),
        (b'{"items": [\xff\xfe]}', 400, "UTF-8"),
        (b"[" * 100_000, 400, "JSON"),
        (
            b'{"items": [{"id": "a", "verifier": "math", "completion": "\\ud800"}]}',
            422,
            "cannot be scored",
        ),
        (
            b'{"items": [{"id": "\\udfff", "verifier": "math", "completion": "1"}]}',
            422,
            "cannot be scored",
        ),
        (b'{"items": [{"id": "a", "verifier": "\\udfff", "completion": "1"}]}', 422, "exist"),
        (b'{"items": [{"id": "a", "verifier": "math", "completion": 7}]}', 422, "must be text"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_reason(
    client: httpx.AsyncClient, body: bytes, status: int, said: str
) -> None:
    response = await client.post("/v1/score", content=body, headers=JSON)

    assert said.lower() in json.dumps(problem(response, status)).lower()


async def test_a_body_over_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    body = json.dumps({"items": [item(0, "x" * (2 << 20))]}).encode()

    declared = await client.post("/v1/score", content=body, headers=JSON)

    assert "--body-limit" in problem(declared, 413)["detail"]


async def test_a_body_over_the_limit_is_refused_while_it_streams(
    client: httpx.AsyncClient,
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"items": [{"id": "'
        for _ in range(100):
            yield b"x" * (1 << 20)

    streamed = await client.post("/v1/score", content=endless(), headers=JSON)

    assert "1048576 bytes" in problem(streamed, 413)["detail"]


async def test_integers_of_any_size_are_taken(client: httpx.AsyncClient) -> None:
    big = 10**30

    response = await client.post("/v1/score", json={"items": [item(0, str(big), answer=big)]})

    assert response.json()["results"][0]["status"] == "correct"


async def test_deep_nesting_breaks_nothing(client: httpx.AsyncClient) -> None:
    for depth in (100, 500, 900, 990, 2000):
        nested = "[" * depth + "]" * depth
        body = f'{{"items":[{{"id":"a","verifier":"math","completion":"1","answer":{nested}}}]}}'

        response = await client.post("/v1/score", content=body, headers=JSON)

        assert response.status_code in (200, 400, 422), response.text
        if response.status_code == 200:
            assert response.json()["results"][0]["status"] == "error"


async def test_unknown_paths_and_methods_are_problems_too(client: httpx.AsyncClient) -> None:
    problem(await client.get("/nowhere"), 404)
    problem(await client.get("/v1/score"), 405)


async def test_metrics_count_items_by_verifier_and_status(client: httpx.AsyncClient) -> None:
    def count(text: str) -> float:
        wanted = 'headrace_reward_items_total{status="unparsable",verifier="math"} '
        lines = [line for line in text.splitlines() if line.startswith(wanted)]
        return float(lines[0].removeprefix(wanted)) if lines else 0.0

    before = count((await client.get("/metrics")).text)
    await client.post("/v1/score", json={"items": [item(0, "\\boxed{???}")]})

    assert count((await client.get("/metrics")).text) == before + 1


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_the_openapi_document_describes_the_contract(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    assert set(document["paths"]["/v1/score"]["post"]["responses"]) >= {"200", "413", "422", "429"}
    assert "ScoreRequest" in document["components"]["schemas"]
