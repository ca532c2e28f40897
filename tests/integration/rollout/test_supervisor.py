"""Whose fault it is where a worker cannot work on a run: the run's, or its own host's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollout import supervisor
from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from services.contracts.records import RunState, WorkerRecord
from services.launch import Stack, UpOptions
from services.runtime.tasks import end
from services.store import Store
from services.store.keys import pool_key
from tests.integration.store.scene import RUN, Scene

WHY = "nothing can be sampled and scored, e.g. dataset row 3: no space left on device"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A run, and a worker that says it is at work on it."""
    options = UpOptions(data=tmp_path, parts=frozenset({"redis"}))
    with Stack(options) as stack:
        store = Store.from_url(stack.redis_url)
        scene = Scene(store, None)
        await scene.start()
        other = WorkerRecord(
            id="other", pool="default", host="h", pid=1, state="generating", run=RUN
        )
        await store.workers.heartbeat(other)
        yield scene
        await store.close()


async def after_a_failure(scene: Scene, tmp_path: Path) -> tuple[str, str]:
    """The run's state, and the worker's."""
    given = {"worker": "broken", "data": tmp_path, "vllm_gpu_memory_utilization": 0.3}
    settings = RolloutSettings.model_validate(given)
    broken = supervisor.Supervisor(settings, scene.store)
    assert broken.record.gpu_share == 0.3
    assert broken.record.vllm_version
    run = await scene.store.runs.get(RUN)
    assert run is not None
    broken._limit.run_failed(WHY)
    await broken._failed(run, RunEvents(RUN, "broken", scene.store), WHY)
    run = await scene.store.runs.get(RUN)
    assert run is not None
    return run.state, broken.record.state


async def test_one_broken_worker_does_not_fail_a_run_that_others_work_on(
    scene: Scene, tmp_path: Path
) -> None:
    await scene.finished(1)
    assert await after_a_failure(scene, tmp_path) == (RunState.RUNNING, "unhealthy")


async def test_a_run_without_one_finished_group_fails_though_another_worker_lives(
    scene: Scene, tmp_path: Path
) -> None:
    assert await after_a_failure(scene, tmp_path) == (RunState.FAILED, "unhealthy")
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert run.reason == WHY


async def test_heartbeats_go_on_after_one_that_failed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "HEARTBEAT_SECONDS", 0.01)
    settings = RolloutSettings.model_validate({"worker": "w", "data": tmp_path})
    own = supervisor.Supervisor(settings, scene.store)
    redis, key = scene.store.workers._redis, pool_key("default", "heartbeats")
    await redis.delete(key)
    await redis.set(key, "what another program has left")
    beating = asyncio.create_task(own._beat())
    await asyncio.sleep(0.5)
    await redis.delete(key)
    try:
        async with asyncio.timeout(10):
            while True:
                listed = await scene.store.workers.list("default")
                if [one.id for one in listed] == ["w"]:
                    break
                await asyncio.sleep(0.05)
    finally:
        await end([beating])
