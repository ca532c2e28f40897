"""`headrace track`: rows of a run's metrics in real event files and in a real offline W&B run."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from headrace.cli.client import Gateway
from headrace.cli.runs.track import carry
from services.contracts.records import RunState
from services.runtime.api_key import first_key
from services.settings import Settings
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture
def headrace(headrace_process: Headrace) -> Headrace:
    return headrace_process


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a key of W&B, and would log there."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def run(submit: Any) -> str:
    id: str = submit(name="tracked").json()["id"]
    return id


def step(number: int, **more: Any) -> dict[str, Any]:
    row = {"step": number, "time": 1e9 + number, "reward/mean": number / 10}
    return row | {"bottleneck": "learner", "train/loss": None} | more


def evaluation(number: int) -> dict[str, Any]:
    return {"evaluation/step": number, "evaluation/accuracy": number / 100}


def written(gateway: GatewayProcess, run: str, *rows: dict[str, Any]) -> None:
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def end(in_store: InStore, run: str, state: RunState = RunState.SUCCEEDED) -> None:
    async def ended(store: Store) -> None:
        await store.runs.set_state(run, state, "")

    in_store(ended)


def scalars(folder: Path, tag: str) -> list[tuple[int, Any]]:
    """(step, value) of every event of `tag`, in the order of the files."""
    found = EventAccumulator(str(folder))
    found.Reload()
    if tag not in found.Tags()["tensors"]:
        return []
    events = found.Tensors(tag)
    return [(event.step, pytest.approx(make_ndarray(event.tensor_proto))) for event in events]


def test_a_run_that_is_over_is_tracked_whole_and_again_without_doubles(
    headrace: Headrace, run: str, gateway: GatewayProcess, in_store: InStore, tmp_path: Path
) -> None:
    hard = [evaluation(n) | {"evaluation/name": name} for n, name in ((2, "hard"), (2, "easy"))]
    written(gateway, run, evaluation(0), step(1), step(2), step(3), evaluation(2), step(4), *hard)
    end(in_store, run)
    folder = tmp_path / "board" / f"tracked-{run}"

    for _ in range(2):
        done = headrace("track", run, "--tensorboard", "board", "--json")

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "run": run,
            "state": "succeeded",
            "rows": 8,
            "tensorboard": f"board/tracked-{run}",
        }
        assert scalars(folder, "reward/mean") == [(n, n / 10) for n in (1, 2, 3, 4)]
        assert scalars(folder, "evaluation/accuracy") == [(0, 0.0), (2, 0.02)]
        # Each held-out set has curves of its own.
        for name in ("hard", "easy"):
            assert scalars(folder, f"evaluation/{name}/accuracy") == [(2, 0.02)]
        assert scalars(folder, "train/loss") == scalars(folder, "bottleneck") == []


def test_a_run_is_followed_to_its_end_and_late_evaluations_are_not_missed(
    environment: dict[str, str],
    run: str,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "headrace", "track", run, "--tensorboard", str(tmp_path)]
    folder = tmp_path / f"tracked-{run}"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        written(gateway, run, step(1), step(2), step(3))
        eventually(lambda: folder.is_dir() and len(scalars(folder, "reward/mean")) == 3)
        written(gateway, run, evaluation(1), step(4))
        eventually(lambda: scalars(folder, "evaluation/accuracy") == [(1, 0.01)])
        assert process.poll() is None
        written(gateway, run, step(5))
        end(in_store, run)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 0
    assert "tracked 6 rows; the run is over: succeeded" in said
    assert scalars(folder, "reward/mean") == [(n, n / 10) for n in (1, 2, 3, 4, 5)]


def test_an_evaluation_that_comes_on_another_page_than_its_step_is_not_missed(
    run: str, gateway: GatewayProcess, in_store: InStore, tmp_path: Path
) -> None:
    rows = [step(number) for number in range(1, 1001)]
    written(gateway, run, *rows, evaluation(990), step(1001))
    end(in_store, run)

    tracked = carry(Gateway(gateway.url, key=first_key(Settings(data=gateway.data))), run, [])

    assert tracked == (1002, "succeeded")


def test_a_folder_that_takes_no_more_is_named(
    environment: dict[str, str],
    run: str,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
) -> None:
    written(gateway, run, *(step(number) for number in range(1, 101)))
    end(in_store, run)
    # Files of at most 2 KiB: 100 events take more.
    limited = f'ulimit -f 2; exec "{sys.executable}" -m headrace track {run} --tensorboard .'

    done = subprocess.run(
        ["bash", "-c", limited],
        env=environment | {"PYTHONPATH": os.getcwd(), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert f"error: tracked-{run} cannot be written: File too large\n" in done.stderr


def records_of(folder: Path) -> Iterator[Any]:
    """Return the records of the offline run in a folder."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return records_in(file)


def records_in(file: Path) -> Iterator[Any]:
    """Yield the records of an offline run (LevelDB's log format: blocks of 32 KiB)."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def test_weights_and_biases_gets_config_and_rows(
    headrace: Headrace,
    run: str,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
    environment: dict[str, str],
) -> None:
    written(gateway, run, step(1), step(2), evaluation(1), step(3))
    end(in_store, run)
    environment |= {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}

    done = headrace("track", run, "--wandb", "mine")

    assert done.returncode == 0, done.stderr
    assert "tracked 4 rows; the run is over: succeeded" in done.stdout
    records = list(records_of(tmp_path))
    (begun,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (begun.project, begun.run_id, begun.display_name) == ("mine", run, "tracked")
    config = {item.key: item.value_json for item in begun.config.update}
    assert json.loads(config["algorithm"])["samples_per_prompt"] > 1
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.item}
        for one in (record.history for record in records if record.HasField("history"))
    ]
    assert [row["step"] for row in rows if "step" in row] == [1, 2, 3]
    assert [row["reward/mean"] for row in rows if "step" in row] == [0.1, 0.2, 0.3]
    (late,) = (row for row in rows if "evaluation/step" in row)
    assert (late["evaluation/step"], late["evaluation/accuracy"]) == (1, 0.01)
    assert not any(record.WhichOneof("record_type") == "output_raw" for record in records)


@pytest.mark.parametrize(("state", "code"), [(RunState.SUCCEEDED, 0), (RunState.FAILED, 1)])
def test_a_run_that_failed_has_failed_in_weights_and_biases_too(
    headrace: Headrace,
    run: str,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
    environment: dict[str, str],
    state: RunState,
    code: int,
) -> None:
    written(gateway, run, step(1))
    end(in_store, run, state)
    environment |= {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}

    done = headrace("track", run, "--wandb", "mine")

    assert done.returncode == 0, done.stderr
    codes = [one.exit.exit_code for one in records_of(tmp_path) if one.HasField("exit")]
    assert codes == [code]


def test_an_untrackable_run_is_reported_in_a_sentence(
    headrace: Headrace, run: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    nowhere = headrace("track", run)
    unwritable = headrace("track", run, "--tensorboard", "file")
    keyless = headrace("track", run, "--wandb", "mine")
    # Found before the package, as it lies where the command is run.
    (tmp_path / "wandb.py").write_text("raise ImportError('no module named wandb')")
    missing = headrace("track", run, "--wandb", "mine")

    assert {one.returncode for one in (nowhere, unwritable, keyless, missing)} == {1}
    assert "say where to: --tensorboard FOLDER, --wandb PROJECT, or another" in nowhere.stderr
    assert "cannot be written: Not a directory" in unwritable.stderr
    assert "error: wandb refuses: " in keyless.stderr
    assert "Traceback" not in keyless.stderr
    assert "wandb is not installed here: pip install wandb" in missing.stderr
