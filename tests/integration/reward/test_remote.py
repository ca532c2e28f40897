"""Verifiers that ask others over HTTP: `judge`, `model` at a vLLM server, own ones by URL. Through
the real service, against a real server that answers what a test says."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reward.endpoints import Endpoint
from reward.verifiers.base import Item
from reward.verifiers.remote import HttpParams, HttpVerifier
from tests.integration.reward.conftest import Service, until
from tests.integration.reward.test_pool import math, score
from tests.integration.reward.upstream import Answer, Upstream


def nothing(path: str, body: Any) -> Answer:
    return 404, {"path": path}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    server = Upstream(nothing)
    yield server
    server.close()


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Service]:
    """A service that asks the upstream."""
    service = Service(
        tmp_path_factory.mktemp("asking"),
        *("--max-queued-items", "8", "--remote-at-once", "4"),
        f"--verifiers=haiku={upstream.url}/v1/score",
        f"--judges=strict={upstream.url}/v1",
        f"--judges=mild={upstream.url}/v1",
        f"--reward-models=rm={upstream.url}",
        f"--endpoint-keys={json.dumps({'strict': 'secret-1', 'haiku': 'secret-2'})}",
    )
    yield service
    service.end()


@pytest.fixture
async def client(asking: Service, upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    await asking.ready()
    upstream.asked.clear()
    async with asking.client() as client:
        yield client


def haiku(number: int = 0, **params: Any) -> dict[str, Any]:
    return {
        "id": f"haiku-{number}",
        "verifier": "haiku",
        "prompt": [{"role": "user", "content": "A haiku, please"}],
        "completion": "An old silent pond",
        "answer": {"syllables": [5, 7, 5]},
        "params": params,
    }


def results(verdict: dict[str, Any]) -> Callable[[str, Any], Answer]:
    """Answers each item with `verdict`."""
    return lambda path, body: (
        200,
        {"results": [{**verdict, "id": item["id"]} for item in body["items"]]},
    )


PARTIAL = {
    "id": "0",
    "status": "partial",
    "reward": 0.4,
    "components": {"syllables": 0.4},
    "parts": [{"end": 5, "score": 0.4}, {"end": 9, "score": 0.0}],
    "detail": "5 of 17",
}


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


async def test_items_that_wait_travel_in_one_request(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = lambda path, body: (
        200,
        # In any order: results go by id.
        {
            "results": [
                {"id": one["id"], "status": "scored", "reward": one["params"]["worth"]}
                for one in reversed(body["items"])
            ]
        },
    )

    own = await score(client, *(haiku(number, worth=number) for number in range(4)))

    assert [result["reward"] for result in own] == [0.0, 1.0, 2.0, 3.0]
    assert [len(body["items"]) for _, body, _ in upstream.asked] == [4]


@pytest.mark.parametrize("failure", ["refused", "crashes", "slow", "unreadable", "unanswered"])
async def test_one_bad_item_does_not_fail_its_neighbours(
    client: httpx.AsyncClient, upstream: Upstream, failure: str
) -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        bad = any("bad" in one["params"] for one in body["items"])
        good = [{**PARTIAL, "id": one["id"]} for one in body["items"] if not one["params"]]
        if bad and failure == "slow":
            release.wait(30)
        if bad and failure in ("refused", "crashes"):
            return (422 if failure == "refused" else 500), b"bad item"
        if bad and failure == "unreadable":
            good.append({"id": "1", "status": "good", "reward": "much"})
        return 200, {"results": good}

    upstream.answer = answer
    limits = {"attempts": 1, "timeout": 2.0}
    try:
        items = [haiku(0, **limits), haiku(1, bad=True, **limits), haiku(2, **limits)]
        first, bad, last = await score(client, *items)
    finally:
        release.set()

    assert (first["reward"], last["reward"]) == (0.4, 0.4)
    assert (bad["status"], bad["reward"]) == ("error", None)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_service_is_not_asked_for_each_item_of_a_batch_alone(
    client: httpx.AsyncClient, upstream: Upstream, status: int
) -> None:
    upstream.answer = lambda path, body: (status, b"busy")

    own = await score(client, *(haiku(number, attempts=2) for number in range(4)))

    assert [result["status"] for result in own] == ["error"] * 4
    assert all(f"answers {status}: busy" in result["detail"] for result in own)
    assert [len(body["items"]) for _, body, _ in upstream.asked] == [4, 4]


async def test_a_batch_goes_on_waiting_for_a_busy_service_until_its_deadline(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = lambda path, body: (503, b"starting")

    own = await score(client, *(haiku(number, attempts=100, timeout=1.0) for number in range(4)))

    assert [result["detail"] for result in own] == ["no result after 1 s"] * 4
    assert {len(body["items"]) for _, body, _ in upstream.asked} == {4}


async def test_a_refused_connection_is_tried_once_for_a_batch() -> None:
    requests: list[httpx.Request] = []

    async def count(request: httpx.Request) -> None:
        requests.append(request)

    # Port 1 needs root, and nothing uses it.
    verifier = HttpVerifier(Endpoint("haiku", "http://127.0.0.1:1"))
    await verifier.open()
    verifier._http.event_hooks["request"] = [count]
    params = HttpParams(attempts=1)
    items = [Item("haiku", "", "", None, {}) for _ in range(4)]

    verdicts = await asyncio.gather(*(verifier.score(item, params) for item in items))
    await verifier.close()

    assert [verdict.status for verdict in verdicts] == ["error"] * 4
    assert len(requests) == 1


async def test_a_deadline_that_passes_is_an_error_and_holds_up_nobody(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    release = threading.Event()

    def answer(path: str, body: Any) -> Answer:
        release.wait(30)
        return 200, {"results": [PARTIAL]}

    upstream.answer = answer
    try:
        late = asyncio.create_task(score(client, haiku(timeout=0.5)))
        await until(lambda: upstream.asked, "the service has been asked")
        (other,) = await score(client, math(1, "5"))
        assert not late.done()
        (own,) = await late
    finally:
        release.set()

    assert other["status"] == "correct"
    assert (own["status"], own["reward"]) == ("error", None)
    assert own["detail"] == "no result after 0.5 s"


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
    # The math item that was refused beside the other has not been judged.
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


def judged(**params: Any) -> dict[str, Any]:
    return {
        "id": "judged",
        "verifier": "judge",
        "prompt": "Which is larger?",
        "completion": "The whale. {answer}",
        "answer": "whale",
        "params": {"judge": "strict", **params},
    }


def says(*replies: str | None) -> Callable[[str, Any], Answer]:
    left = list(replies)

    def answer(path: str, body: Any) -> Answer:
        text = left.pop(0) if len(left) > 1 else left[0]
        return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}

    return answer


async def test_a_judge_is_asked_with_the_template_and_its_score_is_scaled(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("It says whale, as it should. Score: 4/5")

    (result,) = await score(
        client,
        judged(
            template="Q: {prompt} A: {completion} R: {answer} from {minimum} to {maximum}",
            system="Be fair.",
            model="judge-7b",
            minimum=1,
            maximum=5,
        ),
    )

    assert (result["status"], result["reward"]) == ("scored", 0.75)
    assert "as it should" in result["detail"]
    ((path, body, authorization),) = upstream.asked
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret-1")
    assert body == {
        "model": "judge-7b",
        "messages": [
            {"role": "system", "content": "Be fair."},
            # What is filled in is not searched for fields again.
            {
                "role": "user",
                "content": "Q: Which is larger? A: The whale. {answer} R: whale from 1 to 5",
            },
        ],
        "temperature": 0.0,
        "max_tokens": 1024,
    }


async def test_a_key_goes_to_its_own_endpoint_alone(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("Score: 10")

    await score(client, judged(judge="mild"))

    assert [authorization for _, _, authorization in upstream.asked] == [None]


async def test_a_reply_without_a_score_is_asked_for_again(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    upstream.answer = says("Well.", None, "Score: 11", "Score: 5")

    (result,) = await score(client, judged(attempts=4))
    (given_up,) = await score(client, judged(attempts=1, marker="Grade:"))

    assert (result["status"], result["reward"]) == ("scored", 0.5)
    assert (given_up["status"], given_up["reward"]) == ("error", None)
    assert "gives no score from 0 to 10 after 'Grade:'" in given_up["detail"]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (judged(judge=None), "parameter 'judge' must say which one to ask: strict, mild"),
        (judged(judge="harsh"), "there is no judge 'harsh'; there is strict, mild"),
        (judged(minimum=5, maximum=5), "minimum 5 is not below maximum 5"),
        (judged(temprature=1), "did you mean 'temperature'?"),
    ],
)
async def test_a_judge_that_cannot_be_asked_is_told_before_anything_is_scored(
    client: httpx.AsyncClient, item: dict[str, Any], said: str
) -> None:
    response = await client.post("/v1/score", json={"items": [item]})

    assert response.status_code == 422
    assert said in response.json()["detail"]


def modelled(completion: str, **params: Any) -> dict[str, Any]:
    return {
        "id": "modelled",
        "verifier": "model",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "completion": completion,
        "params": params,
    }


async def test_a_vllm_server_scores_the_whole_and_the_bare_answer(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    raw = {"<think>t</think><answer>a</answer>": 5.0, "a": -1.0}

    def answer(path: str, body: Any) -> Answer:
        return 200, {"data": [{"index": 0, "probs": [raw[body["messages"][-1]["content"]], 9.0]}]}

    upstream.answer = answer

    (result,) = await score(
        client, modelled("<think>t</think><answer>a</answer>", clip=3, answer_weight=0.6)
    )

    # As minimind mixes them: .4 of the whole, clipped at 3, and .6 of the answer.
    assert result["reward"] == pytest.approx(0.4 * 3.0 + 0.6 * -1.0)
    assert result["components"] == {"whole": 3.0, "answer": -1.0}
    assert {path for path, _, _ in upstream.asked} == {"/classify"}
    assert all(body["use_activation"] is False for _, body, _ in upstream.asked)
    assert upstream.asked[0][1]["messages"][:2] == modelled("")["prompt"]


async def test_without_an_answer_tag_the_reward_model_scores_the_whole(
    client: httpx.AsyncClient, upstream: Upstream
) -> None:
    # A pooled row a token: the last one scores.
    upstream.answer = lambda path, body: (200, {"data": [{"data": [[9.0], [2.0]]}]})

    (result,) = await score(client, modelled("a", answer_weight=0.6, bias=1, scale=0.5))

    assert (result["reward"], result["components"]) == (0.5, {})


@pytest.mark.parametrize(
    ("answer", "params", "said"),
    [
        ((200, {"data": [{"probs": [1.0]}]}), {"label": 1}, "there is no label 1"),
        ((200, {"data": []}), {}, "answers neither classes nor a pooled row"),
        ((400, b"too long"), {}, "answers 400: too long"),
    ],
)
async def test_a_reward_model_that_cannot_score_is_an_error(
    client: httpx.AsyncClient,
    upstream: Upstream,
    answer: Answer,
    params: dict[str, Any],
    said: str,
) -> None:
    upstream.answer = lambda path, body: answer

    (result,) = await score(client, modelled("a", **params))

    assert (result["status"], result["reward"]) == ("error", None)
    assert said in result["detail"]


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
        assert service.process.wait(20) == 0
    finally:
        release.set()
        slow.close()
