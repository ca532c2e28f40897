"""Pruning goes on, whatever one round of it meets."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway import retention
from services.runtime.tasks import end
from services.store import Unreadable


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
        monkeypatch.setattr(retention, name, counted(name))
    settings: Any = SimpleNamespace(keep_finished_seconds=0.001, data=None)
    nothing: Any = None
    pruning = asyncio.create_task(retention.keep_pruning(nothing, settings, nothing))
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
    await retention.sweep_payloads(store, tmp_path, payloads)
    assert swept == ["whole"]
