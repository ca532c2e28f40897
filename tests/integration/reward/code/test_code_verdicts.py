"""Verdicts of the `code` verifier on honest programs, for each form of tests and prompts."""

from collections.abc import Callable
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError
from tests.integration.reward.code.conftest import ADD, ADD_ASSERTS, HUMANEVAL, Score, outcome
from tests.integration.reward.conftest import Service

pytestmark = pytest.mark.usefixtures("isolation")


def test_a_program_that_passes_its_asserts_is_correct(score: Score) -> None:
    assert outcome(score(ADD, ADD_ASSERTS)) == ("correct", 1.0)
    assert outcome(score("def add(a, b):\n return 3", ADD_ASSERTS)) == ("wrong", 0.0)


def test_credit_can_be_the_fraction_of_passed_tests(score: Score) -> None:
    tests = [*ADD_ASSERTS, "assert add(0, 3) == 3", "assert add(5, 5) == 10"]
    three = "def add(a, b):\n return 3"

    verdict = score(three, tests, credit="fraction")

    assert outcome(verdict) == ("partial", 0.5)
    assert verdict.detail == (
        "passes 2 of 4 tests; test 2 of 4: AssertionError at: assert add(2, 2) == 4"
    )
    assert outcome(score("def add(a, b): pass", tests, credit="fraction")) == ("wrong", 0.0)
    assert outcome(score(three, tests)) == ("wrong", 0.0)


def test_printed_output_is_compared(score: Score) -> None:
    tests = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4"}]

    assert outcome(score("print(sum(map(int, input().split())))", tests)) == ("correct", 1.0)
    verdict = score("input()\nprint(3)", tests)
    assert outcome(verdict) == ("wrong", 0.0)
    assert verdict.detail == "test 2 of 2: printed '3' in line 1, not '4'"


def test_a_test_function_with_helpers_of_the_prompt(score: Score) -> None:
    assert outcome(score("    return x ** 0.5\n", HUMANEVAL)) == ("correct", 1.0)
    assert outcome(score("    pass\n", HUMANEVAL)) == ("wrong", 0.0)
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"
    assert outcome(score(whole, HUMANEVAL)) == ("correct", 1.0)


def test_a_humaneval_row_whose_answer_is_its_test_column(score: Score) -> None:
    prompt, test = HUMANEVAL["prompt"], HUMANEVAL["test"]
    columns = {"entry_point": "root", "task_id": "HumanEval/0"}
    chat = [{"role": "system", "content": "Go on."}, {"role": "user", "content": prompt}]

    for asked in (prompt, chat):
        right = score("    return x ** 0.5\n", test, asked, columns)
        wrong = score("    return x\n", test, asked, columns)

        assert (outcome(right), outcome(wrong)) == (("correct", 1.0), ("wrong", 0.0))


@pytest.mark.parametrize(
    "prompt",
    [
        "def root(x):",
        "def root(x):\n",
        "def root(x):  # Of squares.\n    # Not of others.\n",
        "import math\n\ndef root(\n    x,\n):\n",
    ],
)
def test_a_prompt_may_end_with_the_head_of_the_function(score: Score, prompt: str) -> None:
    tests = {
        "prompt": prompt,
        "entry_point": "root",
        "test": "def check(candidate):\n    assert candidate(9) == 3\n",
    }
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"

    assert outcome(score("\n    return x ** 0.5\n", tests)) == ("correct", 1.0)
    assert outcome(score(whole, tests)) == ("correct", 1.0)
    assert outcome(score("\n    return x\n", tests)) == ("wrong", 0.0)


def test_a_prompt_about_the_function_stays_out_of_the_program(score: Score) -> None:
    asked = 'Complete this function:\n\ndef root(x):\n    """The root of x."""\n'
    whole = "So:\n```python\ndef root(x):\n    return x ** 0.5\n```"
    tests = {"entry_point": "root", "test": "def check(f):\n    assert f(9) == 3\n"}

    assert outcome(score(whole, tests, prompt=asked)) == ("correct", 1.0)


@pytest.mark.parametrize(
    "tests",
    [["assert add(1,"], ["assert 1 == 2"], ["import nothing_such\nassert 1 == 2"],
     {"entry_point": "add", "test": "def check(candidate):\n    assert 1 == 2\n"},
     {"test_setup_code": "1 / 0", "test_list": ADD_ASSERTS},
     ["class X: pass\nassert add(X(), 1) == 3"]],
)  # fmt: skip
def test_a_test_that_cannot_be_passed_is_an_error_of_the_dataset(score: Score, tests: Any) -> None:
    with pytest.raises(BadReferenceError):
        score(ADD, tests)


async def test_code_is_scored_over_http(start: Callable[..., Service]) -> None:
    service = await start().ready()
    items = [
        {"id": "good", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS},
        {"id": "bad", "verifier": "code", "completion": "while True: pass", "answer": ADD_ASSERTS,
         "params": {"time_limit": 0.5}},
        {"id": "row", "verifier": "code", "completion": ADD, "answer": ["assert ("], "row": 17},
        {"id": "much", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS,
         "params": {"memory_mb": 1 << 20}},
    ]  # fmt: skip
    async with service.client() as client:
        answer = (await client.post("/v1/score", json={"items": items})).json()["results"]
        listed = (await client.get("/v1/verifiers")).json()["verifiers"]

    assert [one["status"] for one in answer] == ["correct", "wrong", "error", "error"]
    assert answer[1]["detail"].startswith("test 1 of 2: time_limit")
    assert "row 17" in answer[2]["detail"]
    assert "--worker-memory-mb" in answer[3]["detail"]
    (code,) = [one for one in listed if one["name"] == "code"]
    assert code["available"]
    assert "namespaces" in code["notice"]


async def test_code_without_isolation_is_listed_as_unavailable(
    start: Callable[..., Service],
) -> None:
    service = await start("--code-python", "/no-such-python").ready()
    item = {"id": "0", "verifier": "code", "completion": ADD, "answer": ADD_ASSERTS}
    async with service.client() as client:
        health = (await client.get("/readyz")).json()
        refused = await client.post("/v1/score", json={"items": [item]})

    assert health["status"] == "ready"
    assert "/no-such-python cannot be started" in health["unavailable"]["code"]
    assert refused.status_code == 422
    assert "docs/sandbox.md" in refused.text
