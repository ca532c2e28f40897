"""Python graders in the real sandbox, through the reward service."""

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.usefixtures("isolation")


async def run(client: httpx.AsyncClient, body: str, **params: Any) -> dict[str, Any]:
    grader = {"type": "python", "name": "p", "source": f"def grade(sample, item):\n    {body}"}
    sent = {"params": {"grader": grader, **params}, "item": {"n": 2}, "sample": '{"n": 2}'}
    response = await client.post("/v1/graders/run", json=sent)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_grade_sees_the_sample_and_the_item_and_may_print(client: httpx.AsyncClient) -> None:
    same = "print('hi'); return float(sample['output_json'] == item) + len(sample['output_text'])"

    outcome = await run(client, same)

    assert (outcome["score"], outcome["flags"]) == (9.0, {})


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ("import time; time.sleep(60)", "time_limit", "hit its time_limit"),
        ("while True: print('x' * 100_000)", "output_limit", "hit its output_limit"),
        ("return len(open('/etc/passwd').read())", "", "FileNotFoundError"),
        ("import socket; socket.create_connection(('127.0.0.1', 1))", "", "Error"),
        ("return 'x' * 10**9", "", "MemoryError"),
        ("return float('nan')", "", "grade returned nan"),
        ("return True", "", "grade returned True, a bool"),
        ("return 1 / 0", "", "line 2 (return 1 / 0): ZeroDivisionError"),
        ("import os; os._exit(0)", "", "ended before grade returned"),
        ("raise ValueError('\\ud800')", "", "ValueError: ?"),
    ],
)
async def test_a_program_without_a_score_is_an_error_and_not_a_0(
    client: httpx.AsyncClient, body: str, kind: str, reason: str
) -> None:
    outcome = await run(client, body, time_limit=0.3, memory_mb=128)

    assert (outcome["score"], outcome["kind"]) == (None, kind)
    flag = "python_grader_server_error" if kind else "python_grader_runtime_error"
    assert reason in outcome["flags"][flag]


async def test_an_item_names_its_grader_in_a_score_and_in_a_check(
    client: httpx.AsyncClient,
) -> None:
    same = {"type": "string_check", "name": "same", "operation": "eq"}
    grader = {**same, "input": "{{ sample.output_text }}", "reference": "{{ item.due }}"}
    params = {"grader": grader}
    items = [
        {"id": str(n), "verifier": "grader", "completion": "2", "params": params, "columns": row}
        for n, row in enumerate(({"due": "2"}, {"due": "3"}, {}))
    ]
    rows = [{"columns": {"due": "2"}}, {"columns": {"dew": "2"}}]
    uses = [
        {"verifier": "grader", "params": params, "rows": rows},
        {"verifier": "grader", "params": {"grader": {**grader, "input": "{% if a %}"}}},
    ]

    scored = (await client.post("/v1/score", json={"items": items})).json()["results"]
    checked = (await client.post("/v1/verifiers/check", json={"uses": uses})).json()["problems"]

    assert [(s["status"], s["reward"]) for s in scored] == [
        ("correct", 1.0),
        ("wrong", 0.0),
        ("error", None),
    ]
    assert "item has no 'due'" in scored[2]["detail"]
    assert [(p["use"], p["row"]) for p in checked] == [(0, 1), (1, None)]
    assert "it has dew" in checked[0]["message"]
    assert checked[1]["path"] == "params.grader.string_check.input"
