"""How a leased task ends that cannot be sampled."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollout.work import group_tasks
from rollout.work.evaluation import Evaluator
from rollout.work.failure_limit import FailureLimit
from rollout.work.group_tasks import GroupTasks, Status
from rollout.work.task_rows import RowsAway
from services.contracts.evaluation import AnsweredRow
from services.contracts.rows.task import TaskPosition
from services.store.work.prompts import Lease

AWAY = RowsAway("the files of dataset d cannot be read on this host: Input/output error")


class Leases:
    """Those of one task, and how it was released."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.work: asyncio.Task[None] | None = None

    def hold(self, lease: Lease, work: asyncio.Task[None]) -> None:
        self.work = work

    def ended(self, attempt: str) -> None:
        pass

    async def release(self, attempts: list[str], cause: str = "", detail: str = "") -> None:
        self.released.append(cause)


class Events:
    """Of a run."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def once(self, kind: str, message: str) -> None:
        self.messages.append(message)


async def test_no_task_is_to_blame_for_files_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cannot_be_read(*_: object, **__: object) -> None:
        raise AWAY

    monkeypatch.setattr(GroupTasks, "_sample", cannot_be_read)
    leases, events, limit = Leases(), Events(), FailureLimit()
    rows = SimpleNamespace(of=lambda position: SimpleNamespace(key="0"), count=1)
    given: list[Any] = [rows, leases, events, limit, Status(), lambda: None]
    tasks = GroupTasks(*given)
    tasks.begin(Lease("attempt", TaskPosition(0, 0, 1, 0)), cast(Any, None))
    assert leases.work is not None
    await leases.work
    assert leases.released == [""]
    assert limit.reason is None
    assert tasks.paused
    assert events.messages == [f"groups wait: {AWAY}"]
    assert group_tasks.PAUSE_SECONDS > 0


async def test_no_answer_is_wrong_because_its_row_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    completed: list[AnsweredRow] = []

    async def complete(run: str, id: str, attempt: str, row: AnsweredRow) -> None:
        completed.append(row)

    async def cannot_be_read(*_: object) -> None:
        raise AWAY

    monkeypatch.setattr(Evaluator, "_sample", cannot_be_read)
    store = SimpleNamespace(evaluations=SimpleNamespace(complete=complete))
    nothing = [lambda: None] * 4
    given: list[Any] = [SimpleNamespace(run="r", worker="w"), store, None, Events(), 60.0, *nothing]
    evaluator = Evaluator(*given)
    evaluator._held["attempt"] = True
    request: Any = SimpleNamespace(id="e", set=SimpleNamespace(name="s", samples=1))
    with pytest.raises(RowsAway):
        await evaluator._answer(request, "attempt", 0)
    assert not completed
