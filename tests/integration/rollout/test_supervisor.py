"""A worker that cannot work blames the run or its own host."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from rollout import heartbeat
from rollout import worker_supervisor as supervisor
from rollout.run_events import RunEvents
from rollout.run_worker import RunWorker
from rollout.settings import RolloutSettings
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.process.server import VLLMFailed
from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.contracts.weights import WeightManifest
from services.launch import Stack, UpOptions
from services.runtime.tasks import end
from services.store import Store
from services.store.keys import pool_key
from tests.integration.store.scene import RUN, Scene

WHY = "nothing can be sampled and scored, e.g. dataset row 3: no space left on device"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A run, and another worker that claims to work on it."""
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
    broken = supervisor.WorkerSupervisor(settings, scene.store)
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


async def test_a_worker_whose_vllm_died_is_unhealthy_until_it_tries_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RolloutSettings.model_validate({"worker": "broken", "data": tmp_path})
    broken = supervisor.WorkerSupervisor(settings, scene.store)
    run, heartbeats = await scene.store.runs.get(RUN), list[str]()
    assert run is not None

    async def work(*_: object) -> None:
        broken._heartbeat.worker = cast(RunWorker, Sampling())
        raise VLLMFailed("vLLM ended with signal SIGKILL")

    async def heard(run: RunRecord, events: RunEvents, reason: str) -> None:
        broken.record.state = "unhealthy"
        await broken._heartbeat.send()
        listed = await scene.store.workers.list()
        heartbeats.extend(one.state for one in listed if one.id == "broken")

    monkeypatch.setattr(broken, "_work", work)
    monkeypatch.setattr(broken, "_failed", heard)
    events, manifest = RunEvents(RUN, "broken", scene.store), cast(WeightManifest, None)
    await broken._attend(run, manifest, events, asyncio.Event())
    assert heartbeats == ["unhealthy"]


async def test_a_vllm_that_ends_before_it_samples_fails_with_its_own_last_words(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RolloutSettings.model_validate({"worker": "broken", "data": tmp_path})
    broken = supervisor.WorkerSupervisor(settings, scene.store)
    run, reasons = await scene.store.runs.get(RUN), list[str]()
    assert run is not None

    async def work(*_: object) -> None:
        raise VLLMUnavailable("vLLM does not answer /v1/models: [Connection refused]")

    def ended() -> None:
        raise VLLMFailed("vLLM ended with exit code 1: RuntimeError: head_dim=16", named_cause=True)

    async def heard(run: RunRecord, events: RunEvents, reason: str) -> None:
        reasons.append(reason)

    monkeypatch.setattr(broken, "_work", work)
    monkeypatch.setattr(broken._serving, "check", ended)
    monkeypatch.setattr(broken, "_failed", heard)
    events, manifest = RunEvents(RUN, "broken", scene.store), cast(WeightManifest, None)
    await broken._attend(run, manifest, events, asyncio.Event())
    assert reasons == ["vLLM ended with exit code 1: RuntimeError: head_dim=16"]
    assert broken._limit.failures == 1


class Sampling:
    """The part of a worker that describes itself."""

    def describe(self, record: WorkerRecord) -> None:
        record.state = "generating"


async def test_heartbeats_go_on_after_one_that_failed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    settings = RolloutSettings.model_validate({"worker": "w", "data": tmp_path})
    own = supervisor.WorkerSupervisor(settings, scene.store)
    redis, key = scene.store.workers._redis, pool_key("default", "heartbeats")
    await redis.delete(key)
    await redis.set(key, "what another program has left")
    beating = asyncio.create_task(own._heartbeat.run())
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
