"""The copy of a run's record."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.records import RunRecord, RunState
from services.gateway.submission.run_submission import keep_record
from services.recovery.record_copies import kept_runs
from services.volume import Volume

RUN = RunRecord(
    id="r", name="r", pool="p", kind="rl", state=RunState.QUEUED, config={}, created=1.0
)


@pytest.mark.parametrize("looks", [0, 1, 2], ids=["deleted before", "meanwhile", "not deleted"])
async def test_a_run_deleted_while_its_copy_is_written_leaves_no_copy(
    looks: int, tmp_path: Path
) -> None:
    left = looks

    async def get(_: str) -> RunRecord | None:
        nonlocal left
        left -= 1
        return RUN if left >= 0 else None

    deps: Any = SimpleNamespace(
        volume=Volume(tmp_path), store=SimpleNamespace(runs=SimpleNamespace(get=get))
    )
    await keep_record(deps, RUN.id)
    assert [record.id for record in kept_runs(tmp_path)] == ["r"] * (looks == 2)


async def test_an_edit_of_another_client_is_in_the_copy_too(tmp_path: Path) -> None:
    """Two gateways write the copy at once, and the older one comes last."""
    newer = RUN.model_copy(update={"notes": "newer"})
    found = [RUN, newer]

    async def get(_: str) -> RunRecord:
        return found.pop(0) if len(found) > 1 else found[0]

    deps: Any = SimpleNamespace(
        volume=Volume(tmp_path), store=SimpleNamespace(runs=SimpleNamespace(get=get))
    )
    await keep_record(deps, RUN.id)
    assert [record.notes for record in kept_runs(tmp_path)] == ["newer"]
