"""Redis has reached its `maxmemory`: the run pauses and says so, nothing crashes, and all goes on
when there is memory again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.launch import Stack, UpOptions
from services.runtime.api_key import authorization
from services.store import RedisFull, Store
from services.store.work.tasks import Passed
from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.installation.conftest import SCRIPTED
from tests.integration.learner.test_runs import SFT, add_sums, ended, submit
from tests.integration.learner.torch_worker import eventually
from tests.integration.store.scene import RUN, Scene


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis whose limit may be changed, which that of `headrace up` does not allow."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_url)
    await limit(client, 0)
    await client.flushall()
    yield client
    await limit(client, 0)
    await client.aclose()


@pytest.fixture
async def store(raw: Redis, redis_url: str) -> AsyncIterator[Store]:
    store = Store.from_url(redis_url)
    yield store
    await store.close()


async def limit(client: Redis, memory: int) -> None:
    """Set Redis' memory limit: with 1 it refuses writes that may grow; 0 removes the limit."""
    await client.config_set("maxmemory", memory)


async def test_what_keeps_and_ends_a_run_works_in_a_full_redis_and_the_rest_says_why(
    store: Store, raw: Redis
) -> None:
    scene = Scene(store, raw)
    await scene.start(eta=5)
    await store.check_schema()
    worker = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    await store.workers.heartbeat(worker)
    one, two, three = await scene.leased(3)
    await limit(raw, 1)

    with pytest.raises(RedisFull, match="Redis has no memory left: raise its limit"):
        await scene.lease(1)
    with pytest.raises(RedisFull):
        await store.events.add(RUN, "warning", {})
    await store.check_schema()
    # Calls are whole: a refused call changed nothing, and a finished group is completed.
    assert await store.tasks.renew(RUN, [one.attempt, two.attempt], 60) == []
    assert await scene.complete(one)
    assert await store.tasks.release(RUN, [two.attempt]) == 0
    await store.workers.heartbeat(worker.model_copy(update={"state": "generating"}))
    assert [seen.state for seen in await store.workers.list("default")] == ["generating"]
    await store.runs.set_state(RUN, RunState.PAUSED, "Redis has no memory left")
    run = await store.runs.get(RUN)
    assert run is not None
    assert (await store.insight.situation(run)).flow.held == 1
    audit = await store.ledger.audit(RUN)
    assert (audit.tasks, audit.in_flight, audit.lost, audit.duplicated) == (3, 3, 0, 0)
    await store.runs.cancel(RUN)
    token = scene.fencing_token
    await store.runs.finish(RUN, "default", "cancelled", "on request", fencing_token=token)
    await store.runs.mark_deleting(RUN)
    await store.runs.delete(RUN)
    assert await store.runs.all() == []
    assert three.task == 2


async def test_a_commit_which_makes_room_works_in_a_full_redis_also_with_a_curriculum(
    store: Store, raw: Redis
) -> None:
    scene = Scene(store, raw)
    await scene.start(batch=1)
    (lease,) = await scene.leased(1)
    assert await scene.complete(lease, passed=Passed("0", 0.5))
    await scene.plan(1, await store.trajectories.read(RUN, wait=1))
    await limit(raw, 1)

    assert await scene.commit(1) == 1
    assert await store.tasks.pass_rate(RUN, "0") == 0.5


async def test_the_run_pauses_with_the_reason_and_goes_on_and_headrace_up_restarts_nothing(
    store: Store, raw: Redis, redis_url: str, tmp_path: Path
) -> None:
    """On a Redis of the operator's: that of `headrace up` has no limit."""
    options = UpOptions(
        data=tmp_path, port=0, reward_port=0, redis_url=redis_url, environment=SCRIPTED, grace=5
    )
    stack = await asyncio.to_thread(Stack(options).__enter__)
    try:
        await add_sums(store, tmp_path)
        endless = SFT["training"] | {"max_steps": 100_000}
        await submit(store, "first", SFT | {"training": endless})

        async def reached(state: RunState, step: int) -> RunRecord | None:
            record = await store.runs.get("first")
            return record if record and record.state is state and record.step >= step else None

        await eventually(lambda: reached(RunState.RUNNING, 1))
        await limit(raw, 1)
        paused = await eventually(lambda: reached(RunState.PAUSED, 1))
        headers = authorization(stack.api_key)
        async with httpx.AsyncClient(base_url=stack.gateway_url, headers=headers) as api:
            (run,) = (await api.get("/v1/runs")).json()["runs"]
        assert "Redis has no memory left: raise its limit" in run["reason"]
        stack.check()
        await limit(raw, 0)
        await eventually(lambda: reached(RunState.RUNNING, paused.step + 1))
        await store.runs.cancel("first")
        record = await ended(store, "first")
        assert record.state is RunState.CANCELLED
        assert record.committed_step == record.step > paused.step
        assert "crash" not in stack.log("learner").read_text()
        assert stack.processes.keys() == {"gateway", "reward", "rollout-0", "learner"}
        assert [stack.status(part).restarts for part in stack.processes] == [0] * 4
        stack.check()
    finally:
        await asyncio.to_thread(stack.__exit__, None, None, None)


async def test_the_gateway_refuses_what_grows_with_507_and_deletes_runs_to_make_room(
    store: Store, raw: Redis, redis_url: str, tmp_path: Path
) -> None:
    scene = Scene(store, raw)
    await store.check_schema()
    await scene.start()
    token = scene.fencing_token
    await store.runs.finish(RUN, "default", "cancelled", "on request", fencing_token=token)
    await limit(raw, 1)
    gateway = GatewayProcess(tmp_path / "data", redis_url)
    async with httpx.AsyncClient(base_url=gateway.url, headers=gateway.headers) as api:
        ready = await api.get("/readyz")
        assert ready.status_code == 200, ready.text
        files = {"file": ("a.jsonl", b'{"prompt": "1+1", "answer": "2"}')}
        refused = await api.post("/v1/datasets", files=files)
        assert refused.status_code == 507
        assert refused.json()["detail"].startswith("Redis has no memory left: raise its limit")
        assert refused.headers["Retry-After"]
        assert [run["id"] for run in (await api.get("/v1/runs")).json()["runs"]] == [RUN]
        assert (await api.delete(f"/v1/runs/{RUN}")).status_code == 204
        await limit(raw, 0)
        assert (await api.post("/v1/datasets", files=files)).status_code == 201
    assert gateway.stop() == 0
