"""Turns that wait at the gateway have a budget for bodies, which is freed when clients leave."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from services.contracts.records import WorkerRecord
from services.contracts.sessions import session_id
from services.store import Store
from services.store.agents.sessions import Opened
from tests.integration.gateway.servers import GatewayProcess, RedisServer

LARGEST = 128 << 10
"""Limit of one body in bytes; all turns together have eight times as much."""
ATTEMPT = "abc"


@pytest.fixture
def gateway(tmp_path: Path, redis_server: RedisServer) -> Iterator[GatewayProcess]:
    limits = {"HEADRACE_BODY_LIMIT": str(LARGEST)}
    process = GatewayProcess(tmp_path / "gateway" / "data", redis_server.url, **limits)
    yield process
    process.stop()


def turn(number: int) -> dict[str, Any]:
    """A request that nearly has the largest body."""
    content = str(number) + "x" * (LARGEST - 200)
    return {"messages": [{"role": "user", "content": content}]}


async def opened(redis: Redis, redis_url: str, run: str) -> str:
    """The path of a session's turns. No worker takes them."""
    await redis.zadd(f"headrace:{{{run}}}:attempts", {ATTEMPT: (time.time() + 600) * 1000})
    store = Store.from_url(redis_url)
    about = Opened("0:0:40:0", 0, 1, time.time(), 600.0, 99)
    await store.agent_sessions.open(run, ATTEMPT, about, ["digest"])
    await store.close()
    return f"/v1/sessions/{session_id(run, ATTEMPT, 0)}/v1/chat/completions"


async def test_a_client_that_leaves_frees_its_part_of_the_budget_and_its_turn_stays(
    gateway: GatewayProcess, redis_server: RedisServer, submit: Any
) -> None:
    run = submit({"rollout": {"episode": "sessions"}, "evaluation": None}).json()["id"]
    redis: Redis = Redis.from_url(redis_server.url)

    async def calls() -> int:
        return int(await redis.zcard(f"headrace:{{{run}}}:calls_due"))

    async with (
        httpx.AsyncClient(base_url=gateway.url, headers=gateway.headers, timeout=120) as http,
        asyncio.timeout(100),
    ):
        early = await http.post(f"/v1/runs/{run}/groups/lease")
        assert (early.status_code, "the run is queued" in early.text) == (429, True)
        for unknown in ("x", f"{run}-l0123456789abcdef-1"):
            assert (await http.post(f"/v1/sessions/{unknown}/end")).status_code == 404
        path = await opened(redis, redis_server.url, run)
        waiting = [asyncio.create_task(http.post(path, json=turn(number))) for number in range(8)]
        while await calls() < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        refused = await http.post(path, json=turn(8))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert refused.json()["error"]["type"] == "server_error"
        # Small bodies are still read, and bodies of other requests have their own budget.
        assert (await http.post(path, json={"messages": []})).status_code == 400
        beyond = {"role": "user", "content": "x", "extra": 10**30}
        large = await http.post(path, json={"messages": [beyond]})
        assert (large.status_code, large.json()["error"]["param"]) == (400, "messages")
        summed = path.replace("/v1/chat/completions", "/reward")
        rewarded = await http.post(summed, json={"components": {"a": 1e12, "b": 1e12}})
        assert (rewarded.status_code, rewarded.json()["error"]["param"]) == (400, "components")
        missing = await http.post(summed)
        assert (missing.status_code, "has no body: send JSON" in missing.text) == (422, True)
        foreign = await http.post(summed, headers={"Authorization": "Bearer hr-anothers"})
        assert foreign.status_code == 401
        assert foreign.json()["error"]["message"].startswith("this is neither the key of this")
        policy = await http.post("/v1/responses", json={"model": "nobody", "input": "2+2"})
        assert (policy.status_code, policy.json()["error"]["code"]) == (404, "model_not_found")
        messages = path.replace("/chat/completions", "/messages")
        shown = {"x-api-key": "hr-anothers", "Authorization": ""}
        foreign = await http.post(messages, headers=shown, json={"messages": []})
        assert (foreign.status_code, foreign.json()["error"]["type"]) == (
            401, "authentication_error",
        )  # fmt: skip
        kind = {"Content-Type": "application/json"}
        unread = await http.post(f"{messages}?beta=true", content=b"[", headers=kind)
        assert (unread.status_code, unread.json()["type"]) == (400, "error")
        others = await http.post("/v1/prompts", json={"dataset": "d", "prompts": [turn(0)]})
        assert others.status_code == 422

        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while await calls() < 9:
            last = asyncio.create_task(http.post(path, json=turn(8)))
            while not last.done() and await calls() < 9:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        # The turns of clients that have left are sampled nevertheless.
        assert await calls() == 9
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
    await redis.aclose()


async def test_no_group_is_leased_where_workers_only_evaluate(
    gateway: GatewayProcess, redis_server: RedisServer, submit: Any
) -> None:
    run = submit({"rollout": {"episode": "sessions"}, "evaluation": None}).json()["id"]
    store = Store.from_url(redis_server.url)
    await store.runs.set_state(run, "running", "", fencing_token=await store.runs.acquire(run, "a"))
    worker = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    worker.run, worker.version, worker.lineage, worker.evaluation_only = run, 0, "a", True
    async with (
        httpx.AsyncClient(base_url=gateway.url, headers=gateway.headers, timeout=60) as http,
        asyncio.timeout(60),
    ):
        await store.workers.heartbeat(worker)
        refused = await http.post(f"/v1/runs/{run}/groups/lease")
        worker.evaluation_only = False
        await store.workers.heartbeat(worker)
        leased = await http.post(f"/v1/runs/{run}/groups/lease")
    await store.close()
    assert (refused.status_code, "no worker serves" in refused.text) == (429, True)
    assert leased.status_code == 201, leased.text
