"""How a leased task ends if it cannot be sampled."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import RedisError

from rollout.run_worker import RunWorker
from rollout.vllm.process.server import VLLMFailed
from rollout.work import group_tasks
from rollout.work.evaluator import Evaluator
from rollout.work.failure_limit import FailureLimit
from rollout.work.group_tasks import GroupTasks, WorkStatus
from rollout.work.task_rows import RowsAway
from services.contracts.evaluation import AnsweredRow
from services.contracts.rows.task import TaskPosition
from services.runtime.tasks import end
from services.store.work.tasks import Lease

AWAY = RowsAway("the files of dataset d cannot be read on this host: Input/output error")


class Leases:
    """The leases of one task. They note how it was released."""

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
    """Events of a run."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def once(self, kind: str, message: str) -> None:
        self.messages.append(message)


async def test_unreadable_files_do_not_count_against_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cannot_be_read(*_: object, **__: object) -> None:
        raise AWAY

    monkeypatch.setattr(GroupTasks, "_sample", cannot_be_read)
    leases, events, limit = Leases(), Events(), FailureLimit()
    rows = SimpleNamespace(of=lambda position: SimpleNamespace(key="0"), count=1)
    given: list[Any] = [rows, leases, events, limit, WorkStatus(), lambda: None]
    tasks = GroupTasks(*given)
    tasks.begin(Lease("attempt", TaskPosition(0, 0, 1, 0)), cast(Any, None))
    assert leases.work is not None
    await leases.work
    assert leases.released == [""]
    assert limit.reason is None
    assert tasks.paused
    assert events.messages == [f"groups wait: {AWAY}"]
    assert group_tasks.PAUSE_SECONDS > 0


async def test_an_unreadable_row_is_not_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    completed: list[AnsweredRow] = []

    async def complete(run: str, id: str, attempt: str, row: AnsweredRow) -> None:
        completed.append(row)

    async def cannot_be_read(*_: object) -> None:
        raise AWAY

    monkeypatch.setattr(Evaluator, "_sample", cannot_be_read)
    store = SimpleNamespace(evaluations=SimpleNamespace(complete=complete))
    evaluator = Evaluator(work_of(Events(), store), no_rows)
    evaluator._held["attempt"] = True
    request: Any = SimpleNamespace(id="e", set=SimpleNamespace(name="s", samples=1))
    with pytest.raises(RowsAway):
        await evaluator._answer(request, "attempt", 0)
    assert not completed


def work_of(events: Any, store: Any = None) -> Any:
    """The part of RunWork that an evaluator needs."""
    config = SimpleNamespace(rollout=SimpleNamespace(lease_seconds=60.0))
    context = SimpleNamespace(run="r", worker="w", config=config)
    return SimpleNamespace(context=context, store=store, run_events=events)


def no_rows(dataset: str) -> Any:
    raise AssertionError("no row is read")


async def test_an_event_says_that_an_evaluation_waits_for_files() -> None:
    events = Events()

    class Waiting(Evaluator):
        async def _turn(self) -> bool:
            raise AWAY

    evaluating = asyncio.create_task(Waiting(work_of(events), no_rows).run())
    try:
        async with asyncio.timeout(60):
            while not events.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await end([evaluating])
    assert events.messages == [f"an evaluation waits: {AWAY}"]


async def test_the_reason_why_the_work_ended_survives_an_unreachable_redis() -> None:
    class Failing(RunWorker):
        """A worker that only ends its work."""

        def __init__(self) -> None:
            self._work: Any = SimpleNamespace(closing=False, wake=asyncio.Event())
            self._source: Any = SimpleNamespace(loops=list)
            self._context: Any = SimpleNamespace(
                follower=SimpleNamespace(follow=for_ever),
                config=SimpleNamespace(evaluation=None),
            )
            self._policy_calls: Any = SimpleNamespace(run=for_ever)

        async def _lease(self, stop: asyncio.Event) -> None:
            await self._work.wake.wait()

        async def _renew(self) -> None:
            raise VLLMFailed("vLLM ended with signal SIGKILL")

        async def _release_all(self) -> None:
            raise RedisError("Redis is away")

    with pytest.raises(VLLMFailed):
        await Failing().work(asyncio.Event())


async def for_ever() -> None:
    await asyncio.Event().wait()
