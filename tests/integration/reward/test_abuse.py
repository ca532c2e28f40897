"""Hostile requests and answers get a verdict or a 4xx, never a 5xx."""

import asyncio
import json
import string
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.runtime.api_key import authorization
from tests.integration.reward.conftest import KEY, Service
from tests.integration.reward.test_pool import score

ANSWERS = {
    "tower": "\\boxed{9^{9^{9}}}",
    "python tower": "9**9**9",
    "tower of ten": "10^10^10",
    "factorials": "\\boxed{9!!!!!!}",
    "factorial": "\\boxed{99999999!}",
    "long number": "7" * 1000,
    "longer number": "7" * 100_000,
    "long product": "\\boxed{" + "77777777*" * 200 + "7}",
    "long fraction": "\\boxed{\\frac{" + "7" * 900 + "}{" + "3" * 900 + "}}",
    "opening braces": "\\boxed{" + "{" * 100_000,
    "closing braces": "\\boxed{" + "}" * 100_000,
    "nested braces": "\\boxed{" + "{" * 100_000 + "5" + "}" * 100_000 + "}",
    "nested boxes": "\\boxed{" * 100_000 + "5" + "}" * 100_000,
    "parentheses": "(" * 100_000,
    "roots": "\\boxed{" + "\\sqrt{" * 30 + "5" + "}" * 30 + "}",
    "fractions": "\\boxed{" + "\\frac{1}{" * 30 + "5" + "}" * 30 + "}",
    "no fraction": "\\frac" * 20_000,
    "exponents": "\\boxed{" + "x^{" * 30 + "5" + "}" * 30 + "}",
    "minus": "-" * 100_000 + "5",
    "division by zero": "\\boxed{\\frac{1}{0}}",
    "integral": "\\boxed{\\int_0^\\infty e^{-x^2} \\sin(x^x) dx}",
    "sum": "\\boxed{\\sum_{n=1}^{10^{12}} \\frac{1}{n^n}}",
    "sum of roots": "\\boxed{\\sum_{k=1}^{10^{7}} \\sqrt{k}}",
    "set": "\\boxed{\\{" + ",".join(map(str, range(1000))) + "\\}}",
    "unknowns": "\\boxed{" + "+".join(f"x_{{{n}}}" for n in range(300)) + "}",
    "power of a sum": "\\boxed{(a+b+c+d+e)^{500}}",
    "nul": "5\x00",
    "signs": "\\boxed{\u0663\u0664 \u00bd\u221e\U0001d7d8}",
    "template": "{{5}} {% raw %} %s %n ${5}",
    "dollars": "$" * 100_000,
    "answers": "the answer is " * 10_000,
}


async def test_no_answer_breaks_the_math_verifier(client: httpx.AsyncClient) -> None:
    items = [
        {
            "id": f"{name}/{number}",
            "verifier": "math",
            "completion": answer,
            "answer": reference,
            "params": {"timeout": 0.4},
        }
        for name, answer in ANSWERS.items()
        for number, reference in enumerate(["5", "x^2 + 1"])
    ]
    # Each answer gets its own request, because the body limit of this service is small.
    results = [one for (one,) in await asyncio.gather(*(score(client, item) for item in items))]

    statuses = {result["id"]: result["status"] for result in results}
    allowed = {"wrong", "unparsable", "no_answer", "timeout", "correct"}
    assert {name: status for name, status in statuses.items() if status not in allowed} == {}
    assert all(result["reward"] in (0.0, 1.0) for result in results)


async def test_quick_items_are_scored_while_abusive_ones_run(client: httpx.AsyncClient) -> None:
    fine = [
        {"id": str(n), "verifier": "math", "completion": f"so {n}", "answer": str(n)}
        for n in range(64)
    ]
    poison = [
        {
            "id": name,
            "verifier": "math",
            "completion": ANSWERS[name],
            "answer": "5",
            "params": {"timeout": 0.5},
        }
        for name in ("integral", "sum", "sum of roots", "roots")
    ]

    results, *_ = await asyncio.gather(score(client, *fine), *(score(client, p) for p in poison))

    assert {result["status"] for result in results} == {"correct"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from([2**63, 2**64, -(2**80), 1e308, "", "\\boxed{5}", "(a+)+$", "A", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.ascii_lowercase + "$", max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
VERIFIERS = (
    *("math", "exact", "choice", "contains", "regex", "json_schema", "format", "xml_format"),
    *("length", "repetition", "language", "judge", "model", "grader", "nothing"),
)
PARAMS = st.dictionaries(
    st.sampled_from(
        [
            "schema",
            "pattern",
            "tags",
            "minimum",
            "maximum",
            "part",
            "script",
            "ngram",
            "unit",
            "strict",
            "extract",
            "choices",
            "float_rounding",
            "numeric_precision",
            "prefix",
            "on_timeout",
            "judge",
            "model",
            "grader",
            "whole",
        ]
    ),
    JSON,
    max_size=3,
)
ITEMS = st.fixed_dictionaries(
    {
        "id": st.text(max_size=5) | JSON,
        "verifier": st.sampled_from(VERIFIERS),
        "completion": st.text(max_size=60) | JSON,
    },
    optional={
        "prompt": JSON,
        "answer": JSON,
        "params": PARAMS.map(lambda params: {"timeout": 1, **params}) | JSON,
        "row": JSON,
        "more": JSON,
    },
)
BODIES = st.fixed_dictionaries({"items": st.lists(ITEMS, max_size=3)}) | JSON


@pytest.fixture
def url(shared: Service) -> str:
    asyncio.run(shared.ready())
    return shared.url


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(BODIES)
def test_no_request_of_the_documents_form_is_answered_with_5xx(url: str, body: Any) -> None:
    response = httpx.post(
        f"{url}/v1/score",
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"} | authorization(KEY),
        timeout=60,
    )

    assert response.status_code in (200, 400, 413, 422), response.text
    if response.status_code == 200:
        for result in response.json()["results"]:
            assert (result["reward"] is None) == (result["status"] == "error")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_no_bytes_are_answered_with_5xx(url: str, body: bytes) -> None:
    response = httpx.post(
        f"{url}/v1/score",
        content=body,
        headers={"content-type": "application/json"} | authorization(KEY),
    )

    assert response.status_code in (200, 400, 422), response.text
