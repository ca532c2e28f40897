"""Finished runs keep only some files on the data volume."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.chains import ChainRecord, ChainStep
from services.contracts.records import RunRecord, RunState, RunSummary, WorkerRecord
from services.gateway.run_file_retention import prune, prune_finished, unneeded
from services.gateway.settings import GatewaySettings
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore, RedisServer
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.usefixtures("sums")


def fill(data: Path, run: str) -> Path:
    """A run's folder: three weight versions of 10 bytes, three checkpoints of 100."""
    folder = data / "runs" / run
    for number in (1, 2, 3):
        files = {
            f"weights/v{number:06d}-9f3a1c.safetensors": 10,
            f"checkpoints/step-{number:06d}-9f3a1c/model.safetensors": 100,
        }
        for name, size in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"w" * size)
            os.utime(folder / name, (number, number))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ended(run: str = "r", checkpoint: int = 3) -> RunSummary:
    return RunSummary(
        id=run,
        name=run,
        pool="default",
        kind="rl",
        state=RunState.SUCCEEDED,
        created=0.0,
        checkpoint=f"runs/{run}/checkpoints/step-{checkpoint:06d}-9f3a1c",
    )


def test_a_finished_run_loses_its_weight_versions_and_keeps_its_checkpoints(
    tmp_path: Path,
) -> None:
    folder = fill(tmp_path, "r")

    freed = prune(unneeded(tmp_path, ended(), GatewaySettings(), set())).bytes

    assert freed == 30
    assert names(folder / "weights") == []
    assert len(names(folder / "checkpoints")) == 3
    assert prune(unneeded(tmp_path, ended(), GatewaySettings(), set())).bytes == 0


def test_what_a_killed_process_left_unfinished_is_deleted(tmp_path: Path) -> None:
    folder = fill(tmp_path, "r")
    (folder / "checkpoints/.step-000004-9f3a1c").mkdir()
    (folder / "weights/.v000004-9f3a1c.safetensors.x").write_bytes(b"w")

    prune(unneeded(tmp_path, ended(), GatewaySettings(), set()))

    left = names(folder / "weights") + names(folder / "checkpoints")
    assert len(left) == 3
    assert not [name for name in left if name.startswith(".")]


def test_a_weight_version_that_a_worker_needs_stays(tmp_path: Path) -> None:
    folder = fill(tmp_path, "r")

    prune(
        unneeded(
            tmp_path, ended(), GatewaySettings(), {"runs/r/weights/v000002-9f3a1c.safetensors"}
        )
    )

    assert names(folder / "weights") == ["v000002-9f3a1c.safetensors"]


@pytest.mark.parametrize(
    ("keep", "current", "left"), [(1, 3, [3]), (2, 3, [2, 3]), (1, 1, [1]), (2, 1, [1, 3])]
)
def test_the_current_checkpoint_and_the_newest_stay(
    tmp_path: Path, keep: int, current: int, left: list[int]
) -> None:
    folder = fill(tmp_path, "r")
    settings = GatewaySettings(keep_finished_checkpoints=keep)

    freed = prune(unneeded(tmp_path, ended(checkpoint=current), settings, set())).bytes

    assert names(folder / "checkpoints") == [f"step-{number:06d}-9f3a1c" for number in left]
    assert freed == 30 + 100 * (3 - keep)


def test_sizes_are_shown_and_the_gateway_deletes_what_is_not_needed(
    api: httpx.Client, submit: Any, in_store: InStore, redis_server: RedisServer, tmp_path: Path
) -> None:
    over, live = submit(pool="a").json()["id"], submit(pool="b").json()["id"]
    needed = WorkerRecord(
        id="w", pool="default", host="h", pid=1, state="idle",
        files=[f"runs/{over}/weights/v000001-9f3a1c.safetensors"],
    )  # fmt: skip
    folders = [fill(tmp_path / "data", run) for run in (over, live)]

    async def end(store: Store) -> None:
        await store.workers.heartbeat(needed)
        await store.runs.set_state(over, RunState.SUCCEEDED, "")

    other = GatewayProcess(tmp_path / "data", redis_server.url, HEADRACE_KEEP_FINISHED_SECONDS="1")
    try:
        # Now: without heartbeats a worker is gone after 30 s, in which a gateway may not start.
        in_store(end)
        eventually(lambda: len(names(folders[0] / "weights")) == 1, within=20)
        with httpx.Client(base_url=other.url, headers=other.headers) as there:
            listed = there.get("/v1/runs", params={"limit": 2}).json()["runs"]
            shown = there.get(f"/v1/runs/{live}").json()
    finally:
        other.stop()

    assert len(names(folders[1] / "weights")) == 3, "of a run that is not over"
    assert {run["id"]: run["disk_bytes"] for run in listed} == {live: 330, over: 310}
    assert shown["disk_bytes"] == 330


def supervised(run: str, path: str = "m") -> RunRecord:
    config = {"type": "sft", "data": {"dataset": "sums"}, "model": {"path": path}}
    return RunRecord(
        id=run,
        name=run,
        pool=f"of-{run}",
        kind="sft",
        state=RunState.QUEUED,
        created=0.0,
        config=config,
    )


def test_the_best_checkpoint_and_those_that_others_start_from_stay(
    tmp_path: Path, in_store: InStore
) -> None:
    ids = ("aa000001", "aa000002", "aa000003")
    folders = [fill(tmp_path, run) for run in ids]
    settings = GatewaySettings(data=tmp_path, keep_finished_seconds=1, keep_finished_checkpoints=1)

    async def end(store: Store) -> None:
        for run, best in zip(ids, (1.0, 3.0, 3.0), strict=True):
            await store.runs.submit(supervised(run))
            token = await store.runs.acquire(run, "9f3a1c")
            checkpoint = f"runs/{run}/checkpoints/step-000003-9f3a1c"
            # Its last step had no validation.
            rows = [{"step": 2, "validation/best_step": best}, {"step": 3, "train/loss": 1.0}]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / f"runs/{run}/metrics.jsonl").write_text(lines)
            fields = {
                "checkpoint": checkpoint,
                "committed_step": 3,
                "metrics": {"train/loss": 1.0},
            }
            await store.runs.update(run, token, fields)
            await store.runs.finish(run, f"of-{run}", "succeeded", "", fencing_token=token)
        await store.runs.submit(supervised("aa000004", f"run:{ids[1]}@2"))
        # It waits for its turn, so that no gateway ends its chain.
        await store.runs.submit(supervised("aa000005"))
        steps = [
            ChainStep(name="a", config=supervised("x").config, runs=[ids[2]]),
            ChainStep(name="b", config=supervised("y", "step:a@1").config, runs=["aa000005"]),
        ]
        chain = ChainRecord(id="chain-1", name="c", pool="p", created=0.0, steps=steps)
        await store.chains.add(chain)
        await asyncio.sleep(settings.keep_finished_seconds)
        await prune_finished(store, settings)
        await store.chains.delete("chain-1")
        for run in (*ids, "aa000004", "aa000005"):
            await store.runs.set_state(run, RunState.CANCELLED, "")
            await store.runs.delete(run)

    in_store(end)
    left = [[int(name.split("-")[1]) for name in names(run / "checkpoints")] for run in folders]
    assert left == [[1, 3], [2, 3], [1, 3]]
