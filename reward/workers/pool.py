"""The pool of killable worker processes: gives items to workers, and kills workers past a deadline.

`scheduler` assigns items and blame; `processes` owns the processes and sockets. This module
connects both with the clock and the waiting requests. A deadline is SIGKILL to a process group, so
it holds whatever the worker does: C code, blocked signals, sleep, swapping. No item's failure fails
another.
"""

import asyncio
import math
import time
from collections.abc import Sequence

from reward.metrics import Metrics
from reward.verifiers.base import ItemWork, Verdict
from reward.workers.protocol import Answer, Request, WorkerJob
from reward.workers.scheduler import (
    Action,
    Cause,
    Done,
    ItemTask,
    Kill,
    Send,
    StartWorker,
    Stop,
    WorkerSchedule,
)
from reward.workers.worker_processes import Children, WorkerOptions
from services.runtime.logs import get_logger

log = get_logger(__name__)

# Seconds. A timer that fires this late means that this process was held up. Answers may then lie
# unread, so no worker is killed before they have been read.
STALL = 0.1
# Seconds before a failed fork is tried again: memory may be short.
FORK_AGAIN = 1.0


class QueueFullError(Exception):
    """The queue cannot take `count` more items now. `retry_after` is in seconds."""

    def __init__(self, count: int, queued: int, capacity: int, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(
            f"no room for {count} more: {queued} items are waiting or being scored, of at most "
            f"{capacity}"
        )


class PoolStartError(Exception):
    """No worker process could be started. The log has the reason."""


class PoolClosedError(Exception):
    """The service ends, and these items get no verdict. The caller must not invent one."""


class Pool:
    """The pool of worker processes. It belongs to one event loop; call its methods there."""

    def __init__(
        self,
        *,
        workers: int,
        spare: int,
        capacity: int,
        options: WorkerOptions,
        metrics: Metrics,
    ) -> None:
        self.capacity = capacity
        self.failed: dict[str, str] = {}
        """Verifiers that the processes cannot use, and the reasons. Complete once `start` has
        returned."""
        self._metrics = metrics
        self._schedule = WorkerSchedule(workers, spare=spare)
        self._children = Children(self, options)
        self._items: dict[int, tuple[Request, asyncio.Future[Verdict]]] = {}
        """By ticket, until the verdict."""
        self._next_ticket = 0
        self._next_worker = 0
        self._accused: dict[int, tuple[ItemTask, Cause]] = {}
        self._warm: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._closing = False
        self._failures = 0
        self._item_seconds = 0.001

    @property
    def ready(self) -> bool:
        """Tell whether at least one worker can take items."""
        return sum(self._schedule.workers) > 0

    @property
    def outstanding(self) -> int:
        """Return the number of items without a verdict."""
        return len(self._items)

    @property
    def worker_pids(self) -> list[int]:
        return self._children.pids

    async def start(self, patience: float = 120.0) -> None:
        """Start the processes, and wait until workers can be forked. Raises PoolStartError if that
        fails, or takes longer than `patience` seconds."""
        self._warm = asyncio.get_running_loop().create_future()
        self._children.start_fork_server()
        try:
            await asyncio.wait_for(asyncio.shield(self._warm), patience)
        except TimeoutError:
            raise PoolStartError(
                f"importing the verifiers took longer than {patience:g} s"
            ) from None

    def admit(self, count: int) -> None:
        """Raise QueueFullError or PoolClosedError unless `count` items could be taken now."""
        if self._closing:
            raise PoolClosedError("the service is ending")
        if self.outstanding + count > self.capacity:
            wait = self.outstanding * self._item_seconds / self._schedule.size
            after = min(60, max(1, math.ceil(wait)))
            raise QueueFullError(count, self.outstanding, self.capacity, after)

    async def score(self, items: Sequence[Request]) -> list[Verdict]:
        """Return the verdicts on `items`, in their order. Raises QueueFullError, PoolClosedError.

        A cancelled call removes its items from the queue. A worker finishes its item.
        """
        if not items:
            return []
        self.admit(len(items))
        loop, first = asyncio.get_running_loop(), self._next_ticket
        self._next_ticket += len(items)
        tickets = range(first, self._next_ticket)
        verdicts: list[asyncio.Future[Verdict]] = [loop.create_future() for _ in items]
        self._items |= zip(tickets, zip(items, verdicts, strict=True), strict=True)
        self._schedule.add(
            [
                ItemTask(ticket, item.timeout, item.on_timeout, item.work, item.slow)
                for ticket, item in zip(tickets, items, strict=True)
            ]
        )
        self._advance([])
        try:
            return await asyncio.gather(*verdicts)
        except asyncio.CancelledError:
            for ticket in self._schedule.withdraw(tickets):
                del self._items[ticket]
            raise

    async def close(self) -> None:
        """Kill all processes. Callers that still wait for verdicts get PoolClosedError."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for _, verdict in self._items.values():
            if not verdict.done():
                verdict.set_exception(PoolClosedError("the service ended before the verdict"))
        await self._children.close()

    def _advance(self, actions: list[Action]) -> None:
        """Carry out `actions`, then the actions that the schedule plans now."""
        if self._closing:
            return
        for action in [*actions, *self._schedule.plan(time.monotonic())]:
            match action:
                case Done(ticket, verdict):
                    item, settled = self._items.pop(ticket)
                    if item.work is ItemWork.SCORE:
                        self._metrics.items.labels(item.verifier, str(verdict.status)).inc()
                    # The request may have been cancelled meanwhile.
                    if not settled.done():
                        settled.set_result(verdict)
                case Send(worker, task):
                    item = self._items[task.ticket][0]
                    self._children.send(worker, WorkerJob(task.ticket, task.work, item.item))
                case Stop(worker):
                    self._children.kill(worker)
                case Kill(worker, task):
                    self._kill(worker, task)
                case StartWorker():
                    self._fork()
        self._arm()

    def _fork(self) -> None:
        if not self._children.can_fork:
            # `_restart` asks again.
            self._schedule.not_started()
            return
        worker, self._next_worker = self._next_worker, self._next_worker + 1
        try:
            self._children.fork(worker)
        except OSError as error:
            self.on_not_forked(worker, str(error))

    def _kill(self, worker: int, task: ItemTask) -> None:
        log.warning(
            "an item did not finish in time: killing its worker",
            verifier=self._verifier(task.ticket),
            seconds=task.limit,
            work=str(task.work),
            attempt=task.failures,
        )
        self._metrics.lost.labels("deadline").inc()
        self._children.kill(worker)

    def _verifier(self, ticket: int) -> str:
        known = self._items.get(ticket)
        return known[0].verifier if known else "?"

    # The clock.

    def _arm(self) -> None:
        due = self._schedule.due()
        if due is None:
            return
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        self._due = due
        delay = max(0.0, due - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now - self._due > STALL:
            self._set_timer(now + STALL / 2)
        else:
            self._advance(self._schedule.tick(now))

    # Events of the child processes; see `reward.workers.worker_processes.WorkerEvents`.

    def on_warm(self, failed: dict[str, str]) -> None:
        self.failed = failed
        if self._warm is not None and not self._warm.done():
            self._warm.set_result(None)
        self._advance([])

    def on_fork_server_end(self, exit_code: int, workers: list[int]) -> None:
        lost = [task for worker in workers if (task := self._schedule.lost(worker)) is not None]
        actions: list[Action] = []
        for task in [*(task for task, _ in self._accused.values()), *lost]:
            how = f"with the workers' parent process (exit code {exit_code})"
            actions += self._schedule.blame(task, Cause.ORPHANED, how)
        self._accused.clear()
        self._advance(actions)
        if self._warm is not None and not self._warm.done():
            self._warm.set_exception(
                PoolStartError(f"the workers' parent process ended with exit code {exit_code}")
            )
        elif not self._closing:
            log.error("the workers' parent process ended; starting another", exit_code=exit_code)
            self._restart_later()

    def _restart_later(self) -> None:
        self._failures += 1
        backoff = min(5.0, 0.05 * 2**self._failures)
        asyncio.get_running_loop().call_later(backoff, self._restart)

    def _restart(self) -> None:
        if self._closing:
            return
        try:
            self._children.start_fork_server()
        except OSError as error:
            # Memory may be short, which may be why the last fork server ended.
            log.error("the workers' parent process cannot be started", problem=str(error))
            self._restart_later()
            return
        self._advance([])

    def on_ready(self, worker: int) -> None:
        self._failures = 0
        self._schedule.started(worker)
        self._advance([])

    def on_not_forked(self, worker: int, problem: str) -> None:
        log.error("a worker process could not be started", problem=problem)
        asyncio.get_running_loop().call_later(FORK_AGAIN, self._fork_again)

    def _fork_again(self) -> None:
        self._schedule.not_started()
        self._advance([])

    def on_answer(self, worker: int, answer: Answer) -> None:
        self._metrics.seconds.labels(self._verifier(answer.ticket)).observe(answer.seconds)
        self._item_seconds += 0.01 * (answer.seconds - self._item_seconds)
        self._advance(self._schedule.answered(worker, answer.verdict))

    def on_lost(self, worker: int, unread: bool) -> None:
        task = self._schedule.lost(worker)
        if task is not None:
            self._accused[worker] = task, Cause.UNREAD if unread else Cause.DIED
        self._advance([])

    def on_ending(self, worker: int, cause: str) -> None:
        log.warning("a worker process died", cause=cause)
        self._metrics.lost.labels("died").inc()
        accused = self._accused.pop(worker, None)
        self._advance(self._schedule.blame(*accused, cause) if accused is not None else [])
