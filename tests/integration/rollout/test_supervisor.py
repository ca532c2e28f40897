"""Whose fault it is where a worker cannot work on a run: the run's, or its own host's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.supervisor import Supervisor
from services.contracts.records import RunState, WorkerRecord
from services.launch import Stack, UpOptions
from services.store import Store
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
    supervisor = Supervisor(settings, scene.store)
    assert supervisor.record.gpu_share == 0.3
    assert supervisor.record.vllm_version
    run = await scene.store.runs.get(RUN)
    assert run is not None
    supervisor._limit.run_failed(WHY)
    await supervisor._failed(run, RunEvents(RUN, "broken", scene.store), WHY)
    run = await scene.store.runs.get(RUN)
    assert run is not None
    return run.state, supervisor.record.state


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
