"""Pruning goes on after an error in one round."""

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.records import RunRecord, RunState, RunSummary
from services.datasets.partial_uploads import UploadDescription, begin_upload, find_upload
from services.gateway import run_file_retention
from services.gateway.routes.runs.rollouts import RolloutQuery, rollouts
from services.gateway.settings import GatewaySettings
from services.runtime.tasks import end
from services.store import Unreadable
from services.volume import Volume


@pytest.mark.parametrize("part", ["prune_finished", "sweep_payloads"])
async def test_what_cannot_be_read_ends_no_pruning(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = {"prune_finished": 0, "sweep_payloads": 0}
    later = asyncio.Event()

    def counted(name: str) -> Any:
        async def call(*_: object) -> None:
            rounds[name] += 1
            if min(rounds.values()) >= 2:
                later.set()
            if name == part and rounds[name] == 1:
                raise Unreadable("the workers of pool default", "WRONGTYPE")

        return call

    for name in rounds:
        monkeypatch.setattr(run_file_retention, name, counted(name))
    settings: Any = SimpleNamespace(keep_finished_seconds=0.001, data=None)
    nothing: Any = None
    pruning = asyncio.create_task(run_file_retention.keep_pruning(nothing, settings, nothing))
    try:
        async with asyncio.timeout(60):
            await later.wait()
    finally:
        await end([pruning])


async def test_a_run_whose_records_cannot_be_read_keeps_only_its_own_payloads(
    tmp_path: Path,
) -> None:
    swept: list[str] = []

    async def sweep(run: str) -> None:
        if run == "damaged":
            raise Unreadable("what Redis holds of run damaged", "WRONGTYPE")
        swept.append(run)

    async def restoring() -> bool:
        return False

    async def runs() -> list[str]:
        return ["damaged", "whole"]

    async def summaries(ids: list[str]) -> list[str]:
        return ids

    store: Any = SimpleNamespace(
        dumps=SimpleNamespace(restoring=restoring), runs=SimpleNamespace(summaries=summaries)
    )
    payloads: Any = SimpleNamespace(runs=runs, sweep=sweep)
    await run_file_retention.sweep_payloads(store, tmp_path, payloads)
    assert swept == ["whole"]


DAMAGED = {
    "torn": b"\x00\x00\n",
    "no row": b"[1]\n",
    "no step": b'{"step": "1", "validation/best_step": 1}\n',
    "no number": b'{"step": 1, "validation/best_step": NaN}\n',
    "too large": b'{"step": 1, "validation/best_step": 1e999}\n',
    "nested": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=list(DAMAGED))
async def test_a_run_with_damaged_metrics_keeps_its_files_and_the_others_lose_theirs(
    tmp_path: Path, damage: bytes
) -> None:
    """Nobody knows which of its checkpoints was the best one."""
    runs = []
    for run in ("damaged", "whole"):
        folder = tmp_path / "runs" / run
        for step in (1, 2, 3):
            (folder / f"checkpoints/step-{step:06d}-a").mkdir(parents=True)
        (folder / "metrics.jsonl").write_bytes(b'{"step": 1, "validation/best_step": 1}\n')
        runs.append(
            RunSummary(
                id=run,
                name=run,
                pool="default",
                kind="sft",
                state=RunState.SUCCEEDED,
                created=0.0,
                finished=1.0,
                checkpoint=f"runs/{run}/checkpoints/step-000003-a",
            )
        )
    (tmp_path / "runs/damaged/metrics.jsonl").write_bytes(damage)

    async def listed(*_: object) -> list[Any]:
        return runs

    async def none(*_: object) -> list[Any]:
        return []

    async def free(_: object) -> bool:
        return True

    events: list[tuple[Any, ...]] = []

    async def add(*event: Any) -> None:
        events.append(event)

    (tmp_path / "runs/whole/rollouts").mkdir()
    (tmp_path / "runs/whole/rollouts/part-1").write_bytes(b"answers")
    store: Any = SimpleNamespace(
        events=SimpleNamespace(add=add),
        runs=SimpleNamespace(all=listed, live=none, free=free),
        workers=SimpleNamespace(list=none),
        chains=SimpleNamespace(open=none),
    )
    settings = GatewaySettings(data=tmp_path, keep_finished_seconds=1, keep_finished_checkpoints=1)

    await run_file_retention.prune_finished(store, settings)
    assert (tmp_path / "runs/whole/rollouts/part-1").exists()
    settings.keep_rollouts_days = 1
    await run_file_retention.prune_finished(store, settings)
    await run_file_retention.prune_finished(store, settings)

    def steps(run: str) -> list[str]:
        return sorted(path.name for path in (tmp_path / "runs" / run / "checkpoints").iterdir())

    assert len(steps("damaged")) == 3
    assert steps("whole") == ["step-000001-a", "step-000003-a"]
    assert not (tmp_path / "runs/whole/rollouts").exists()
    assert events == [
        ("whole", "deleted", {"checkpoints": ["step-000002-a"], "rollouts": False, "bytes": 0}),
        ("whole", "deleted", {"checkpoints": [], "rollouts": True, "bytes": 7}),
    ]


async def test_a_run_says_that_retention_has_deleted_its_answers(tmp_path: Path) -> None:
    record = RunRecord(
        id="c0ffee01", name="old", pool="default", kind="rl", state=RunState.SUCCEEDED,
        created=1.0, finished=2.0, config={},
    )  # fmt: skip
    settings = GatewaySettings(data=tmp_path, keep_rollouts_days=3)
    deps: Any = SimpleNamespace(settings=settings, volume=Volume(tmp_path))

    listed = await rollouts(deps, record, RolloutQuery())

    assert listed.none_because == (
        "its answers were deleted 3 days after its end (HEADRACE_KEEP_ROLLOUTS_DAYS)"
    )


def test_what_an_upload_left_whose_gateway_died_is_deleted_after_a_day(tmp_path: Path) -> None:
    """A gigabyte for each of them stayed for good."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    names = (".incoming-old.arrow", ".incoming-new.arrow", "0123456789abcdef")
    for name in names:
        (folder / name).write_text("")
    for name in (names[0], names[2]):
        os.utime(folder / name, (1.0, time.time() - 2 * run_file_retention.UNFINISHED_SECONDS))
    run_file_retention.remove_unfinished(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names[1:])
    run_file_retention.remove_unfinished(tmp_path / "nothing here")


async def test_a_runs_size_counts_rollouts_and_measures_them_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs/r/rollouts"
    folder.mkdir(parents=True)
    (tmp_path / "runs/r/metrics.jsonl").write_bytes(b"1234567")
    (folder / "part-00000001-rank-0000.parquet").write_bytes(b"123")
    measured: list[str] = []
    folder_bytes = run_file_retention.folder_bytes

    def counted(path: Path, without: str = "") -> int:
        measured.append(path.name)
        return folder_bytes(path, without)

    monkeypatch.setattr(run_file_retention, "folder_bytes", counted)
    monkeypatch.setattr(run_file_retention, "SIZE_SECONDS", 0.0)
    sizes = run_file_retention.Sizes(tmp_path)

    assert [await sizes.of(["r", "none"]) for _ in range(2)] == [{"r": 10, "none": 0}] * 2
    assert measured == ["rollouts", "r", "none", "r", "none"]
    (folder / "part-00000002-rank-0000.parquet").write_bytes(b"12345")
    assert await sizes.of(["r"]) == {"r": 15}


def test_an_upload_that_takes_days_stays_while_its_parts_arrive(tmp_path: Path) -> None:
    upload = begin_upload(tmp_path, UploadDescription("a" * 32, "rows.jsonl", 10))
    for path in (tmp_path / "datasets").iterdir():
        os.utime(path, (1.0, time.time() - 2 * run_file_retention.UNFINISHED_SECONDS))
    upload.write(0, b"01234")

    run_file_retention.remove_unfinished(tmp_path)

    assert find_upload(tmp_path, "a" * 32) == upload
