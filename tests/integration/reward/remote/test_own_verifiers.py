"""Own verifiers by URL: requests to them, and verdicts for their replies."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.reward.conftest import Service, until
from tests.integration.reward.remote.own_verifier import PARTIAL, haiku, results
from tests.integration.reward.test_pool import math, score
from tests.upstream import Answer, Upstream


async def test_an_own_verifier_by_url_is_asked_with_the_services_contract(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = results(PARTIAL)

    asked = {**haiku(season="winter"), "columns": {"season": "late"}}
    mixed, own = await score(client, math(1, "5"), asked)

    assert mixed["status"] == "correct"
    assert own == {**PARTIAL, "id": "haiku-0"}
    ((path, body, authorization),) = upstream.asked
    assert (path, authorization) == ("/v1/score", "Bearer secret-2")
    assert body == {
        "items": [{**haiku(season="winter"), "id": "0", "columns": {"season": "late"}}],
    }


async def test_a_service_that_is_away_for_a_moment_is_asked_again(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    answers = iter([(503, b"starting"), (429, b"busy"), (200, {"results": [PARTIAL]})])
    upstream.answer = lambda path, body: next(answers)

    (own,) = await score(client, haiku())

    assert (own["status"], own["reward"]) == ("partial", 0.4)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, b"on fire"), "'haiku' answers 500: on fire"),
        ((403, b"no"), "'haiku' answers 403: no"),
        ((200, b"no json"), "'haiku' answers no JSON"),
        ((200, b"[" * 100_000), "'haiku' answers no JSON"),
        ((200, {"results": []}), "has no result for this item, or several"),
        ((200, {"results": [PARTIAL, PARTIAL]}), "has no result for this item, or several"),
        ((200, [PARTIAL]), "answers no list of results"),
        ((200, {"results": [{"id": "0", "status": "good", "reward": 1}]}), "answers no score"),
        ((200, {"results": [{"id": "0", "status": "wrong", "reward": None}]}), "answers no score"),
        ((200, b'{"results": [{"id": "0", "status": "scored", "reward": NaN}]}'), "not finite"),
        ((200, b'{"results": [{"id": "0", "status": "scored", "reward": -1.7e308}]}'), "reward of"),
        ((200, b" " * (5 << 20)), "longer than"),
    ],
)
async def test_an_unusable_reply_is_an_error_without_reward(
    client: httpx.AsyncClient, upstream: Upstream, answer: Answer, said: str
) -> None:
    upstream.answer = lambda path, body: answer

    (own,) = await score(client, haiku(attempts=2))

    assert (own["status"], own["reward"]) == ("error", None)
    assert said in own["detail"]


async def test_a_deadline_that_passes_is_an_error_and_holds_up_nobody(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        release.wait(30)
        return 200, {"results": [PARTIAL]}

    upstream.answer = answer
    try:
        waiting = asyncio.create_task(score(client, haiku(0, timeout=60)))
        await until(lambda: upstream.asked, "the service has been asked")
        (other,) = await score(client, math(1, "5"))
        assert not waiting.done()
        (late,) = await score(client, haiku(1, timeout=0.5))
    finally:
        release.set()

    assert other["status"] == "correct"
    assert (late["status"], late["reward"]) == ("error", None)
    assert late["detail"] == "no result after 0.5 s"
    assert (await waiting)[0]["reward"] == PARTIAL["reward"]


async def test_a_full_queue_takes_all_or_nothing(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        release.wait(30)
        return results(PARTIAL)(path, body)

    upstream.answer = answer
    before = await judged_correct(client)
    try:
        waiting = asyncio.create_task(score(client, *map(haiku, range(8))))
        await until(lambda: upstream.asked, "the service has been asked")
        assert len(upstream.asked[0][1]["items"]) == 4
        full = await client.post("/v1/score", json={"items": [math(1, "5"), haiku()]})
        (other,) = await score(client, math(1, "5"))
    finally:
        release.set()

    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    assert other["status"] == "correct"
    assert {result["status"] for result in await waiting} == {"partial"}
    # The math item in the refused request has not been scored.
    assert await judged_correct(client) == before + 1


async def judged_correct(client: httpx.AsyncClient) -> float:
    """How many math items have been found correct so far."""
    wanted = 'headrace_reward_items_total{status="correct",verifier="math"} '
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


async def test_no_url_of_a_json_schema_is_fetched(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    schema = {"$ref": f"{upstream.url}/schema.json"}

    (result,) = await score(
        client, {"id": "0", "verifier": "json_schema", "completion": "{}", "answer": schema}
    )

    assert (result["status"], result["reward"]) == ("error", None)
    assert upstream.asked == []


async def test_requests_that_wait_for_a_remote_verifier_get_503_at_the_end(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        release.wait(30)
        return 200, {}

    slow = Upstream(answer)
    try:
        flags = (f"--verifiers=haiku={slow.url}", "--drain-timeout", "0.1")
        service = await start(*flags).ready()
        async with service.client() as client:
            waiting = asyncio.create_task(client.post("/v1/score", json={"items": [haiku()]}))
            await until(lambda: slow.asked, "the service has been asked")

            service.process.terminate()
            response = await waiting

        assert response.status_code == 503
        assert service.process.wait(100) == 0
    finally:
        release.set()
        slow.close()
