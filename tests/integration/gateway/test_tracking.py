"""Runs whose config names trackers: real event files and a real offline W&B run."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.records import RunState
from services.gateway import tracking as module
from services.gateway.tracking import TrackerCarriers
from services.store import Store
from services.volume import Volume
from tests.integration.gateway.servers import GatewayProcess, InStore
from tests.integration.gateway.test_track import evaluation, records_in, scalars, step
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a key of W&B, and would log there."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(module, "FIRST_WAIT", 0.1)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """Another volume than the gateway's, which carries what is open there."""
    return Volume(tmp_path)


def add(volume: Volume, run: str, *rows: dict[str, Any]) -> Path:
    path = volume.path(f"runs/{run}/metrics.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


async def until(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, is_so)


async def carrying(store: Store, volume: Volume, is_so: Callable[[], bool]) -> None:
    """Be a gateway until `is_so`."""
    gateway = asyncio.create_task(TrackerCarriers(store, volume).keep_carrying())
    try:
        await until(is_so)
    finally:
        gateway.cancel()
        await asyncio.wait([gateway])


@pytest.fixture
def run(submit: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that names TensorBoard and W&B, as far as the carrying gateway knows."""
    named: dict[str, dict[str, Any]] = {"tensorboard": {}, "wandb": {"project": "mine"}}
    monkeypatch.setattr(module, "chosen", lambda config: named)
    id: str = submit(name="tracked").json()["id"]
    return id


async def begun(store: Store, volume: Volume, run: str) -> None:
    record = await store.runs.get(run)
    assert record is not None
    await TrackerCarriers(store, volume).begin(record)


def rows_of(folder: Path, run: str) -> list[tuple[str, int]]:
    """Return the steps and evaluations of all files of an offline W&B run, in their order."""
    rows = []
    for file in sorted(folder.glob(f"wandb/offline-run-*/run-{run}.wandb")):
        for record in records_in(file):
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
                name = "step" if "step" in items else "evaluation/step"
                rows.append((name, int(items[name])))
    return rows


def test_metrics_reach_the_trackers_of_a_run_once_over_a_restart_of_the_gateway(
    in_store: InStore, run: str, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = volume.path("tracking")
    board = folder / "tensorboard" / f"tracked-{run}"
    kept = folder / "open" / run / "wandb.json"

    async def carry(store: Store) -> None:
        await begun(store, volume, run)
        metrics = add(volume, run, evaluation(0), step(1), step(2), step(3))
        await carrying(
            store, volume, lambda: kept.is_file() and len(scalars(board, "reward/mean")) == 3
        )
        # Meanwhile the learner has gone back to step 2, and the run has ended.
        metrics.unlink()
        again = [step(n) | {"reward/mean": 9.0} for n in (3, 4)]
        add(volume, run, evaluation(0), step(1), step(2), *again, evaluation(2))
        await store.runs.set_state(run, RunState.SUCCEEDED, "")
        await carrying(store, volume, lambda: not kept.parent.exists())

    in_store(carry)

    assert scalars(board, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 9.0), (4, 9.0)]
    assert scalars(board, "evaluation/accuracy") == [(0, 0.0), (2, 0.02)]
    carried = [("evaluation/step", 0), *(("step", n) for n in (1, 2, 3, 4))]
    assert rows_of(folder, run) == [*carried, ("evaluation/step", 2)]


def test_a_tracker_that_is_away_is_an_event_and_gets_everything_once_it_is_back(
    api: httpx.Client,
    in_store: InStore,
    run: str,
    volume: Volume,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = volume.path("tracking")
    board = folder / "tensorboard"

    def warnings() -> list[str]:
        return re.findall(r"tracker (\w+): ", api.get(f"/v1/runs/{run}/events").text)

    async def carry(store: Store) -> None:
        await begun(store, volume, run)
        board.parent.mkdir(exist_ok=True)
        board.write_text("no folder")
        add(volume, run, step(1), step(2))
        await store.runs.set_state(run, RunState.SUCCEEDED, "")
        gateway = asyncio.create_task(TrackerCarriers(store, volume).keep_carrying())
        try:
            await until(lambda: len(warnings()) == 2)
            board.unlink()
            os.environ["WANDB_MODE"] = "offline"
            await until(lambda: not (folder / "open" / run).exists())
        finally:
            gateway.cancel()
            await asyncio.wait([gateway])

    monkeypatch.setenv("WANDB_MODE", "online")
    in_store(carry)

    assert scalars(board / f"tracked-{run}", "reward/mean") == [(1, 0.1), (2, 0.2)]
    assert rows_of(folder, run) == [("step", 1), ("step", 2)]
    assert sorted(warnings()) == ["tensorboard", "wandb"]
    events = api.get(f"/v1/runs/{run}/events").text
    assert "tracker wandb: wandb refuses: " in events
    assert "cannot be written: " in events
    assert "it is tried again, and misses no step" in events
    assert f'"place":"{board}/tracked-{run}"' in events.replace(" ", "")


def test_a_submission_with_trackers_is_carried_by_its_gateway(
    api: httpx.Client, submit: Any, gateway: GatewayProcess, in_store: InStore
) -> None:
    refused = submit({"tracking": {"mlflow": {}}})
    assert refused.status_code == 422
    assert "tracking.mlflow" in refused.text
    assert "HEADRACE_TRACKERS=tensorboard,mlflow" in refused.text

    run = submit({"tracking": {"tensorboard": {}}}, name="watched").json()["id"]
    add(Volume(gateway.data), run, step(1))

    async def carry(store: Store) -> None:
        await store.runs.set_state(run, RunState.SUCCEEDED, "")
        opened = gateway.data / "tracking" / "open" / run
        await until(lambda: not opened.exists())

    in_store(carry)

    board = gateway.data / "tracking" / "tensorboard" / f"watched-{run}"
    assert scalars(board, "reward/mean") == [(1, 0.1)]
