"""Waiting items for one own verifier share a request; failed items get requests of their own."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from reward.remote_endpoints import Endpoint
from reward.verifiers.base import Item
from reward.verifiers.remote.http_verifier import HttpParams, HttpVerifier
from tests.integration.reward.remote.own_verifier import PARTIAL, haiku
from tests.integration.reward.test_pool import score
from tests.upstream import Answer, Upstream


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
    limits = {"attempts": 1, "timeout": 4.0}
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
