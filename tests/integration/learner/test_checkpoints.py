"""Checkpoints and versions during training: learners killed and stopped at every point."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from learner.checkpoints.checkpoint_reader import verify
from services.contracts.config import parse_config
from services.contracts.records import RunRecord, RunState
from services.rollouts.reader import page
from services.rollouts.rollout_filter import RolloutFilter
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place, placed, stored
from tests.integration.learner.forked import LOCK_VARIABLE
from tests.integration.learner.test_runs import ended, rl, steps, submit, supervised
from tests.integration.learner.torch_worker import TorchWorker, eventually, serving

STEPS = 9
TRAINING: dict[str, Any] = {"max_steps": STEPS, "checkpoint_every": 3, "tokens_per_microbatch": 64}
STOPPING = "tests.integration.learner.stopping_learner"


@pytest.fixture(scope="module")
def with_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place's folder with a model to start from. Nothing runs there."""
    folder = tmp_path_factory.mktemp("model")

    async def supervise(place: Place) -> None:
        async with stored(place) as store:
            learner = await supervised(place, store)
            learner.send_signal(signal.SIGTERM)
            learner.wait()

    with placed(folder) as place:
        asyncio.run(supervise(place))
    return folder


@pytest.fixture
def place(with_model: Path, tmp_path: Path) -> Iterator[Place]:
    # The socket of a Redis that has ended cannot be copied.
    unsocketed = shutil.ignore_patterns("*.sock")
    shutil.copytree(with_model, tmp_path, dirs_exist_ok=True, ignore=unsocketed)
    with placed(tmp_path) as here:
        yield here


@pytest.fixture
async def busy(place: Place, store: Store) -> AsyncIterator[TorchWorker]:
    """A waiting run, and a worker that serves it."""
    config = rl(training=TRAINING)
    await submit(store, "second", config)
    async with serving(store, Volume(place.data), "second", parse_config(config)) as worker:
        yield worker


def folders(place: Place) -> list[str]:
    return sorted(path.name for path in (place.data / "runs/second/checkpoints").iterdir())


async def assert_nothing_lost(place: Place, store: Store, record: RunRecord) -> None:
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, STEPS, "")
    assert record.checkpoint is not None
    assert verify(place.data / record.checkpoint).step == record.committed_step == STEPS
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (STEPS * 4, 0, [])
    assert found.max_staleness_seen <= 1
    assert [row["step"] for row in steps(place, "second")] == list(range(1, STEPS + 1))
    # The rows of each step match the ledger, and each row appears once.
    endings = (await store.ledger.generation("second")).endings
    trained = {ending.step: {int(d.partition(":")[0]) for d in ending.tasks} for ending in endings}
    kept = page(place.data / "runs/second/rollouts", RolloutFilter(), None, 1000)
    answers = [(row.step, row.group) for row in reversed(kept.rollouts)]
    assert [step for step, _ in answers] == [n for n in range(1, STEPS + 1) for _ in range(16)]
    assert all(task in trained[step] for step, task in answers)
    # The newest two on the path to this point, and nothing unfinished or uncommitted.
    left = folders(place)
    assert len(left) <= 2
    assert record.checkpoint.endswith(left[-1])
    assert all(verify(place.data / "runs/second/checkpoints" / name) for name in left)


@pytest.mark.parametrize(
    ("killed_before", "committed", "whole"),
    [("renamed?", 0, 0), ("committed?", 0, 1), ("retained?", 3, 1)],
)
async def test_a_learner_killed_while_it_makes_a_checkpoint_trains_each_task_once(
    place: Place,
    store: Store,
    busy: TorchWorker,
    killed_before: str,
    committed: int,
    whole: int,
) -> None:
    learner = place.learner(STOPPING, killed_before, "SIGKILL")
    assert await asyncio.to_thread(learner.wait) == -signal.SIGKILL
    record = await store.runs.get("second")
    assert record is not None
    assert record.committed_step == committed
    assert len([name for name in folders(place) if name.startswith("step-")]) == whole

    successor = place.learner()

    record = await ended(store, "second")
    assert [began for _, began in await store.runs.lineages("second")] == [0, committed]
    await assert_nothing_lost(place, store, record)
    successor.send_signal(signal.SIGTERM)
    assert successor.wait() == 0


async def test_a_learner_killed_while_it_publishes_leaves_whole_versions_and_deltas_of_one_lineage(
    place: Place, store: Store
) -> None:
    model = {"path": "run:first", "dtype": "bfloat16"}
    config = rl(training=TRAINING, model=model, optimizer={"type": "adamw", "lr": 1e-6})
    await submit(store, "second", config)
    async with serving(store, Volume(place.data), "second", parse_config(config)) as worker:
        learner = place.learner(STOPPING, "published?", "SIGKILL")
        assert await asyncio.to_thread(learner.wait) == -signal.SIGKILL
        newest = await store.weights.newest("second")
        assert newest is not None
        assert newest.version == 2
        weights = place.data / "runs/second/weights"
        assert [path.name[:8] for path in weights.glob(".v*")] == [".v000003"]
        assert not list(weights.glob("v000003*"))

        successor = place.learner()

        await assert_nothing_lost(place, store, await ended(store, "second"))
        assert not list(weights.glob(".v*"))
        assert worker.kinds == {"full", "delta"}
        newest = await store.weights.newest("second")
        assert newest is not None
        assert newest.lineage not in {tag.partition(":")[0] for tag in list(worker.digests)[:1]}
        assert all(newest.lineage in file.name for file in newest.files)
    successor.send_signal(signal.SIGTERM)
    assert successor.wait() == 0


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", -signal.SIGKILL), ("Redis", 1)])
async def test_every_committed_step_has_its_row_of_metrics_wherever_a_learner_dies(
    place: Place, store: Store, busy: TorchWorker, how: str, code: int
) -> None:
    learner = place.learner("tests.integration.learner.dying_learner", "3", how)
    assert await asyncio.to_thread(learner.wait) == code
    record = await store.runs.get("second")
    assert record is not None
    assert record.committed_step <= len(steps(place, "second")) == 2

    successor = place.learner()

    await assert_nothing_lost(place, store, await ended(store, "second"))
    successor.send_signal(signal.SIGTERM)
    assert successor.wait() == 0


async def test_a_learner_that_sleeps_before_its_rename_cannot_harm_its_successor(
    place: Place, store: Store, busy: TorchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = place.learner(STOPPING, "renamed?", "SIGSTOP")
    await eventually(sleeper.stopped)

    # Otherwise the sleeper takes the pool back from a successor that is held up for 2 s.
    monkeypatch.setenv(LOCK_VARIABLE, "60")
    successor = place.learner()

    async def committed(step: int) -> bool:
        record = await store.runs.get("second")
        return record is not None and record.committed_step >= step

    await eventually(partial(committed, 3))
    sleeper.send_signal(signal.SIGCONT)
    # Fenced, or without Redis if it slept for longer than a connection lasts.
    assert await asyncio.to_thread(sleeper.wait) in (3, 1)
    record = await ended(store, "second")
    lineages = await store.runs.lineages("second")
    assert [began for _, began in lineages] == [0, 0]
    assert record.checkpoint is not None
    assert record.checkpoint.endswith(f"step-{STEPS:06d}-{lineages[1][0]}")
    await assert_nothing_lost(place, store, record)
    successor.send_signal(signal.SIGTERM)
    assert successor.wait() == 0


async def test_training_goes_on_while_a_checkpoint_is_written_and_its_commit_covers_only_it(
    place: Place, store: Store, busy: TorchWorker
) -> None:
    written = place.data / "go-on"
    learner = place.learner(STOPPING, "renamed?", str(written))

    async def reached(step: int) -> RunRecord | None:
        record = await store.runs.get("second")
        return record if record is not None and record.step >= step else None

    record = await eventually(partial(reached, 6))
    assert record.committed_step == 0
    written.touch()

    record = await ended(store, "second")
    await assert_nothing_lost(place, store, record)
    events = await store.events.read("second", "0")
    made = [event.data["step"] for event in events if event.kind == "checkpoint"]
    # The checkpoint that fell due meanwhile was made as soon as the first was done.
    assert made[0] == 3
    assert made[1] >= 6
    assert made[-1] == STEPS
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_the_next_step_does_not_wait_for_a_version_to_be_published(
    place: Place, store: Store, busy: TorchWorker
) -> None:
    written = place.data / "go-on"
    learner = place.learner(STOPPING, "published?", str(written))

    async def reached(step: int) -> bool:
        record = await store.runs.get("second")
        return record is not None and record.step >= step

    # With a staleness of 1, version 2 samples for steps up to 4.
    await eventually(partial(reached, 4))
    newest = await store.weights.newest("second")
    assert newest is not None
    assert newest.version == 2
    written.touch()

    await assert_nothing_lost(place, store, await ended(store, "second"))
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0
