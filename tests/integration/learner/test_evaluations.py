"""When a run's evaluations are requested, and what happens to their answers: a real Redis, without
training or sampling."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learner.coordinate.coordinator import Coordinator
from learner.coordinate.crash_limit import CrashLimit
from learner.environment import RunEnvironment
from learner.optim.optimizers import Optimizers
from learner.state import TrainingProgress
from learner.store.run_store import RunStore
from learner.store.thread import StoreThread
from services.contracts.config import RLConfig, parse_config
from services.contracts.records import RunRecord
from services.contracts.weights import WeightFile, WeightManifest
from services.evaluations import folder_of, results
from services.settings import Settings
from services.store import Fenced, Store
from services.volume import Volume
from tests.evaluating import answered, request
from tests.integration.learner.conftest import Place
from tests.integration.learner.evaluating import Evaluated, evaluations_of
from tests.integration.learner.test_coordinator import ALONE, Scene, scene
from tests.integration.learner.test_runs import add_sums, rl, submit
from tests.unit.learner.policies import state_of, tiny_model

__all__ = ["scene"]


@pytest.fixture
async def evaluated(scene: Scene) -> Evaluated:
    return Evaluated(scene, evaluations_of(scene))


async def test_an_evaluation_that_falls_due_while_another_is_open_waits_and_keeps_its_version(
    evaluated: Evaluated,
) -> None:
    await evaluated.step(4)
    await evaluated.step(6)
    await evaluated.step(7)
    assert await evaluated.unfinished() == ["000004-test", "000006-test"]
    (warning,) = await evaluated.events("warning")
    assert "evaluation of step 6 on test waits for that of step 4" in warning["message"]
    # The files of both versions are needed until then.
    assert evaluated.evaluations.files == {"v4", "v6"}
    await evaluated.answer("correct", "wrong")
    await evaluated.answer("correct", "correct")

    assert not await evaluated.follow()

    assert evaluated.evaluations.files == set()
    told = [
        (one["step"], one["version"], one["accuracy"])
        for one in await evaluated.events("evaluation")
    ]
    assert told == [(4, 4, 0.5), (6, 6, 1.0)]
    rows = [one for one in evaluated.metrics() if "evaluation/id" in one]
    assert [one["evaluation/accuracy"] for one in rows] == [0.5, 1.0]
    assert [one.state for one in evaluated.results()] == ["done", "done"]
    assert evaluated.rows("000004-test") == [0, 1]


async def test_waiting_versions_are_capped_and_the_cap_is_reported(
    evaluated: Evaluated,
) -> None:
    for step in range(2, 13, 2):
        await evaluated.step(step)
    assert await evaluated.unfinished() == [f"{step:06d}-test" for step in (2, 4, 6, 8)]
    warnings = [one["message"] for one in await evaluated.events("warning")]
    assert [one.startswith("step 10 is not evaluated on test") for one in warnings[-2:]] == [
        True,
        False,
    ]
    assert "raise evaluation.every" in warnings[-1].lower()


async def test_each_held_out_set_is_evaluated_with_its_own_options(scene: Scene) -> None:
    more = [{"dataset": "sums", "name": "hard", "rows": 1, "samples": 3, "temperature": 0.5}]
    evaluated = Evaluated(scene, evaluations_of(scene, more=more))
    await evaluated.step(2)
    assert await evaluated.unfinished() == ["000002-test", "000002-hard"]
    sets = [one.set for one in await scene.store.evaluations.requests("r")]
    assert [(one.rows, one.samples, one.sampling.temperature) for one in sets] == [
        (2, 1, 0.0),
        (1, 3, 0.5),
    ]
    assert sets[1].rewards == sets[0].rewards


async def test_a_successor_continues_and_each_row_is_answered_once(evaluated: Evaluated) -> None:
    """The learner dies after it has written a part, before Redis counts the part."""
    scene, state = evaluated.scene, evaluated.scene.state.progress
    await evaluated.step(4)
    await evaluated.answer("correct")

    stored = scene.run.fenced

    def die(method: Any, *given: Any) -> None:
        if method == scene.run.evaluations.stored:
            raise KeyboardInterrupt
        stored(method, *given)

    scene.run.fenced = die  # type: ignore[method-assign, assignment]
    (standing,) = await evaluated.standing()
    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(evaluated.evaluations._files.move, standing)
    assert evaluated.rows("000004-test") == [0]
    scene.run.fenced = stored  # type: ignore[method-assign]

    # It goes back to an earlier step. The requested evaluation continues anyway.
    successor = Evaluated(scene, evaluations_of(scene))
    at = replace(state, step=3, version=3)
    await asyncio.to_thread(successor.evaluations.begin, at, set())
    assert await successor.unfinished() == ["000004-test"]
    assert successor.evaluations.files == {"v4"}
    await successor.answer("wrong")
    await successor.follow()

    assert successor.rows("000004-test") == [0, 1]
    (record,) = successor.results()
    assert (record.state, record.metrics["accuracy"]) == ("done", 0.5)
    # The run reaches step 4 again, and step 4 is evaluated.
    await successor.step(4)
    assert await successor.unfinished() == []
    assert [one["step"] for one in await successor.events("evaluation")] == [4]


async def test_a_learner_that_was_replaced_while_it_slept_leaves_the_answers_of_its_successor(
    evaluated: Evaluated,
) -> None:
    """It sleeps between reading answers and writing them, and wakes after its successor has stored
    these and other answers in the file of the same number."""
    scene = evaluated.scene
    await evaluated.step(4)
    await evaluated.answer("correct")
    record = await scene.store.runs.get("r")
    assert record is not None
    after = replace(scene, run=RunStore(scene.run._thread, record))
    successor = Evaluated(after, evaluations_of(after))
    files, loop = evaluated.evaluations._files, asyncio.get_running_loop()
    retry = files.disk.retry

    async def take_over() -> None:
        await asyncio.to_thread(after.run.acquire)
        await asyncio.to_thread(successor.evaluations.take_up)
        await successor.answer("wrong")
        await successor.follow()

    def sleep(*given: Any) -> None:
        asyncio.run_coroutine_threadsafe(take_over(), loop).result(30)
        retry(*given)

    files.disk.retry = sleep  # type: ignore[method-assign, assignment]
    (standing,) = await evaluated.standing()
    with pytest.raises(Fenced):
        await asyncio.to_thread(files.move, standing)
    assert evaluated.rows("000004-test") == [0, 1]


async def test_an_evaluation_that_was_due_when_the_learner_died_is_requested_at_the_next_start(
    evaluated: Evaluated,
) -> None:
    successor = Evaluated(evaluated.scene, evaluations_of(evaluated.scene))
    at = replace(evaluated.scene.state.progress, step=5, version=5)
    await asyncio.to_thread(successor.evaluations.begin, at, set())
    assert await successor.unfinished() == ["000005-test"]
    again = evaluations_of(evaluated.scene)
    await asyncio.to_thread(again.begin, at, set())
    assert await successor.unfinished() == ["000005-test"]


async def test_the_last_version_is_evaluated_once_and_all_workers_answer(
    evaluated: Evaluated,
) -> None:
    await evaluated.step(18)
    last = replace(evaluated.scene.state.progress, step=20, version=20)
    await asyncio.to_thread(evaluated.evaluations.after_step, last)

    assert await asyncio.to_thread(evaluated.evaluations.last, last)
    assert await evaluated.unfinished() == ["000018-test", "000020-test"]
    leases = [
        await evaluated.scene.store.evaluations.lease(
            "r", worker=name, version=f"{last.lineage}:18", busy=True, count=1, ttl=60
        )
        for name in "ab"
    ]
    assert [one.rows[0][1] for one in leases] == [0, 1]
    for one in leases:
        ((attempt, row),) = one.rows
        await evaluated.scene.store.evaluations.complete("r", one.id, attempt, answered(row))
    await evaluated.answer("correct", "correct")
    assert not await evaluated.follow()
    assert not await asyncio.to_thread(evaluated.evaluations.last, last)
    assert [one.metrics["failed"] for one in evaluated.results()] == [2, 0]


async def test_an_impossible_evaluation_is_reported_and_the_next_one_opens(
    evaluated: Evaluated,
) -> None:
    await evaluated.step(2)
    await evaluated.step(4)
    await evaluated.scene.store.evaluations.fail("r", "000002-test", "w", "its weights are gone")
    await evaluated.follow()
    warnings = [one["message"] for one in await evaluated.events("warning")]
    assert warnings[-1] == "the evaluation of step 2 on test failed: its weights are gone"
    assert [one.state for one in evaluated.results()] == ["failed"]
    assert await evaluated.unfinished() == ["000004-test"]


async def test_a_cancelled_run_keeps_the_answers_so_far(evaluated: Evaluated) -> None:
    await evaluated.step(2)
    await evaluated.step(4)
    await evaluated.answer("correct")
    await asyncio.to_thread(evaluated.evaluations.cancel)
    assert [(one.state, one.answered) for one in evaluated.results()] == [
        ("cancelled", 1),
        ("cancelled", 0),
    ]
    assert evaluated.rows("000002-test") == [0]
    warnings = [one["message"] for one in await evaluated.events("warning")]
    assert "step 2 on test ends with 1 of 2 rows answered" in warnings[-2]


async def test_files_that_were_lost_make_an_evaluation_fail(evaluated: Evaluated) -> None:
    await evaluated.step(2)
    await evaluated.answer("correct")
    (standing,) = await evaluated.standing()
    await asyncio.to_thread(evaluated.evaluations._files.move, standing)
    (part,) = folder_of(evaluated.scene.data, "r", "000002-test").glob("*.parquet")
    part.unlink()
    await evaluated.answer("correct")
    await evaluated.follow()
    (record,) = evaluated.results()
    assert (record.state, record.metrics) == ("failed", {})
    assert "the answers of 1 rows, and 2 were answered" in record.reason


async def submitted(
    place: Place, store: Store, max_steps: int, **evaluation: Any
) -> tuple[RLConfig, RunRecord]:
    """Return the config and the record of run `r`, with an evaluation of two rows."""
    await add_sums(store, place.data)
    raw = rl(
        model={"path": "org/model"},
        training={"max_steps": max_steps},
        evaluation={"dataset": "sums", "name": "test", "rows": 2, **evaluation},
    )
    await submit(store, "r", raw)
    config, record = parse_config(raw), await store.runs.get("r")
    assert isinstance(config, RLConfig)
    assert record is not None
    return config, record


def coordinator_of(
    config: RLConfig, max_steps: int, step: int, run: RunStore, data: Path, stop: threading.Event
) -> Coordinator:
    """Return the coordinator of run `r` after `step`."""
    loaded = tiny_model()
    progress = TrainingProgress("r", step, step, [("dead", 0), (run.lineage, step)], "org/model")
    state = state_of(loaded, Optimizers(loaded.model, config.optimizer), progress=progress)
    environment = RunEnvironment(ALONE, run, Volume(data), stop)
    return Coordinator(config, max_steps, environment, state)


async def test_the_first_version_of_a_successor_leaves_files_that_open_evaluations_need(
    place: Place, store: Store
) -> None:
    config, record = await submitted(place, store, 9, every=2, at_start=False)
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    folder = place.data / "runs/r/weights"
    folder.mkdir(parents=True)
    files = [folder / f"v00000{version}-dead.safetensors" for version in (3, 4)]
    for file in files:
        file.write_bytes(b"0")
    with StoreThread(settings, threading.Event()) as thread:
        dead = RunStore(thread, record)
        await asyncio.to_thread(dead.acquire)
        of_4 = [WeightFile(str(files[1].relative_to(place.data)), 1, "0")]
        evaluated = WeightManifest("r", 4, "dead", "full", of_4, 1, "runs/r/model")
        asked = request(evaluated, rows=2, name="sums")
        await asyncio.to_thread(dead.fenced, dead.evaluations.ask, asked)

        run = RunStore(thread, record)
        await asyncio.to_thread(run.acquire)
        coordinator = coordinator_of(config, 9, 4, run, place.data, threading.Event())
        await asyncio.to_thread(coordinator.begin)
        await asyncio.to_thread(coordinator.close)

    # Version 3 is no longer needed.
    assert [file.exists() for file in files] == [False, True]


async def test_a_run_of_zero_steps_samples_no_task_and_ends_with_its_evaluation_alone(
    place: Place, store: Store
) -> None:
    config, record = await submitted(place, store, 0)
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    stop = threading.Event()
    with StoreThread(settings, stop) as thread:
        run = RunStore(thread, record)
        await asyncio.to_thread(run.acquire)
        coordinator = coordinator_of(config, 0, 0, run, place.data, stop)
        await asyncio.to_thread(coordinator.begin)
        command = await asyncio.to_thread(coordinator.next_command)
        assert command.kind == "finish"
        ending = asyncio.create_task(
            asyncio.to_thread(coordinator.end, command, CrashLimit(place.data / "crashes", 0))
        )
        granted = await store.tasks.lease(
            "r", worker="w", lineage=run.lineage, version=0, count=1, ttl=60, reserve_bytes=100
        )
        assert (granted.leases, granted.refusal) == ([], "admission")
        leased = await store.evaluations.lease(
            "r", worker="w", version=f"{run.lineage}:0", busy=False, ttl=60, count=2
        )
        for attempt, row in leased.rows:
            assert await store.evaluations.complete(
                "r", leased.id, attempt, answered(row, "correct")
            )
        assert await asyncio.wait_for(ending, 60) == "finish"
        await asyncio.to_thread(coordinator.close)
    (found,) = results(place.data, "r")
    assert (found.state, found.answered, found.metrics["accuracy"]) == ("done", 2, 1.0)
    assert not list((place.data / "runs/r").glob("checkpoints/*"))
