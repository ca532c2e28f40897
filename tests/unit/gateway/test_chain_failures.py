"""A chain that cannot go on holds up no other one, and says why."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.chains import advance
from services.http import Problem
from services.runtime.tasks import end
from services.volume import Volume
from services.volume.run_files import METRICS


@pytest.mark.parametrize(
    "wrong", [FileNotFoundError("segment.arrow"), PermissionError("metrics.jsonl"), ValueError("x")]
)
async def test_a_chain_whose_files_cannot_be_read_stops_no_other_chain(
    wrong: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dataset's file may be gone, or its step's metrics unreadable."""
    later = asyncio.Event()

    async def advanced(_: object, id: str) -> None:
        if id == "chain-1":
            raise wrong
        later.set()

    async def opened() -> list[str]:
        return ["chain-1", "chain-2"]

    monkeypatch.setattr(advance, "advance", advanced)
    deps: Any = SimpleNamespace(store=SimpleNamespace(chains=SimpleNamespace(open=opened)))
    advancing = asyncio.create_task(advance.keep_advancing(deps))
    try:
        async with asyncio.timeout(60):
            await later.wait()
    finally:
        await end([advancing])


async def test_a_chain_ends_where_nobody_can_say_which_checkpoint_is_best(tmp_path: Path) -> None:
    """It was tried again each second, and said nothing."""
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / METRICS).write_text('{"validation/best_step"\n')
    deps: Any = SimpleNamespace(volume=Volume(tmp_path))
    run: Any = SimpleNamespace(id="r", resume_from=None)
    with pytest.raises(Problem, match=r"model.path step:sft@best: .* is damaged"):
        await advance._best_step(deps, run, "model.path step:sft@best")
