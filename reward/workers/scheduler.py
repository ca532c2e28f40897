"""Assigns items to workers, and finds the item to blame when a worker is lost.

The scheduler is a state machine over plain values. It has no processes, I/O or clock (callers pass
the time). The pool reports events, and carries out the returned actions.

Invariants:

* A worker has one item at a time. So blame is exact, and no item waits behind another.
* An item is blamed at most twice for the same thing: then it gets a verdict. The second try runs in
  another process.
* A worker that has been on one item for `slow_after` seconds no longer counts towards `size`.
* Slow items never take all workers: `reserve` workers are always left for items that may yet be
  quick. If the slow items have taken all other workers, an item that turns out slow loses its
  worker. It waits, blameless, until it may be slow.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from reward.verifiers.base import ItemWork, Verdict, broken
from services.contracts.scores import ScoreStatus

EXCUSED_MAX = 4
"""After this number of workers lost by other causes, the item itself counts as the cause."""


class Cause(StrEnum):
    DEADLINE = "deadline"
    DIED = "died"
    ORPHANED = "orphaned"
    """All workers died at once, with their parent: most likely not because of this item."""
    UNREAD = "unread"
    """The worker died before it read the item: another process killed it."""


@dataclass(slots=True)
class ItemTask:
    """One item, without its content."""

    ticket: int
    limit: float
    """The deadline of the item, in seconds."""
    on_timeout: float | None
    """The reward after two missed deadlines. None masks the item."""
    work: ItemWork = ItemWork.SCORE
    slow: bool = False
    """Whether the item is known to take longer than `slow_after`."""
    failures: int = 0
    excused: int = 0
    """The number of lost workers for which the item is most likely not to blame."""

    def timed_out(self) -> "Done":
        """Return the verdict after two missed deadlines, if the reference is not to blame."""
        detail = f"not finished in {self.limit:g} s, twice"
        if self.on_timeout is None:
            return Done(self.ticket, broken(detail))
        return Done(self.ticket, Verdict(ScoreStatus.TIMEOUT, self.on_timeout, detail))


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Action: start one more worker. `started` or `not_started` follows."""


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send this task to that worker."""

    worker: int
    task: ItemTask


@dataclass(frozen=True, slots=True)
class Stop:
    """Action: end that worker without blaming an item. The schedule has forgotten the worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Action: kill that worker, whatever it does. The schedule has forgotten the worker."""

    worker: int
    task: ItemTask


@dataclass(frozen=True, slots=True)
class Done:
    """Action: hand out the verdict on that ticket."""

    ticket: int
    verdict: Verdict


Action = StartWorker | Send | Stop | Kill | Done


@dataclass(slots=True)
class _Worker:
    task: ItemTask | None = None
    since: float = 0.0
    scored: int = 0
    slow: bool = False


class WorkerSchedule:
    """The state of all workers and tasks. Times are seconds of any monotonic clock."""

    def __init__(
        self, size: int, *, spare: int, slow_after: float = 0.2, max_items: int = 20_000
    ) -> None:
        self.size = size
        self.spare = spare
        self.reserve = min(size + spare - 1, max(1, size // 4))
        self.slow_after = slow_after
        self.max_items = max_items
        """Items after which a worker is replaced, since libraries may leak memory."""
        self._queue: deque[ItemTask] = deque()
        self._slow_queue: deque[ItemTask] = deque()
        self._workers: dict[int, _Worker] = {}
        self._starting = 0

    @property
    def waiting(self) -> int:
        """Return the number of tasks that no worker has been given."""
        return len(self._queue) + len(self._slow_queue)

    @property
    def workers(self) -> tuple[int, int, int]:
        slow = self._slow()
        idle = sum(worker.task is None for worker in self._workers.values())
        return idle, len(self._workers) - idle - slow, slow

    def add(self, tasks: list[ItemTask]) -> None:
        for task in tasks:
            (self._slow_queue if task.slow else self._queue).append(task)

    def withdraw(self, tickets: Container[int]) -> list[int]:
        withdrawn: list[int] = []
        for queue in (self._queue, self._slow_queue):
            withdrawn += [task.ticket for task in queue if task.ticket in tickets]
            kept = [task for task in queue if task.ticket not in tickets]
            queue.clear()
            queue.extend(kept)
        return withdrawn

    def started(self, worker: int) -> None:
        self.not_started()
        self._workers[worker] = _Worker()

    def not_started(self) -> None:
        """Record that an ordered worker will not come. The next plan orders another worker."""
        self._starting = max(0, self._starting - 1)

    def answered(self, worker: int, verdict: Verdict) -> list[Action]:
        state = self._workers[worker]
        task, state.task, state.slow = state.task, None, False
        state.scored += 1
        assert task is not None
        # With failures, this check follows a scoring that did not finish. Without, the check was
        # all that the request asked for.
        unproven = task.work is ItemWork.REFERENCE and task.failures > 0
        if unproven and verdict.status is not ScoreStatus.ERROR:
            return [task.timed_out()]
        return [Done(task.ticket, verdict)]

    def lost(self, worker: int) -> ItemTask | None:
        """Record that the worker died by itself, and return its task. Pass that task to `blame`
        once the cause of death is known."""
        state = self._workers.pop(worker, None)
        return state.task if state is not None else None

    def blame(self, task: ItemTask, cause: Cause, detail: str) -> list[Action]:
        """Blame `task` for the end of a worker. `detail` says how it ended, for the verdict."""
        if cause in (Cause.ORPHANED, Cause.UNREAD) and task.excused < EXCUSED_MAX:
            task.excused += 1
            return self._again(task)
        if task.work is ItemWork.RUN:
            return [Done(task.ticket, broken(f"the program was not run: {detail}"))]
        if task.work is ItemWork.REFERENCE:
            late = f"did not finish in {task.limit:g} s"
            what = late if cause is Cause.DEADLINE else f"broke the verifier ({detail})"
            return [Done(task.ticket, broken(f"checking the reference alone {what}"))]
        task.failures += 1
        task.slow = task.slow or cause is Cause.DEADLINE
        if task.failures < 2:
            return self._again(task)
        if cause is not Cause.DEADLINE:
            return [Done(task.ticket, broken(f"the verifier's process died twice: {detail}"))]
        task.work = ItemWork.REFERENCE
        return self._again(task)

    def _again(self, task: ItemTask) -> list[Action]:
        """Try `task` once more, before the tasks that have waited for less time."""
        (self._slow_queue if task.slow else self._queue).appendleft(task)
        return []

    def tick(self, now: float) -> list[Action]:
        """Kill workers whose item is over its deadline, and note which workers turn out slow."""
        actions: list[Action] = []
        for worker, state in list(self._workers.items()):
            task, spent = state.task, now - state.since
            if task is None:
                continue
            if spent >= task.limit:
                del self._workers[worker]
                actions.append(Kill(worker, task))
                late = f"no result after {task.limit:g} s"
                actions += self.blame(task, Cause.DEADLINE, late)
            elif not state.slow and spent >= self.slow_after:
                task.slow = True
                if self._may_be_slow():
                    state.slow = True
                else:
                    del self._workers[worker]
                    self._slow_queue.append(task)
                    actions.append(Stop(worker))
        return actions

    def due(self) -> float | None:
        """Return when `tick` must run next. Return None while no worker is busy."""
        times = [
            state.since + (task.limit if state.slow else min(self.slow_after, task.limit))
            for state in self._workers.values()
            if (task := state.task) is not None
        ]
        return min(times, default=None)

    def plan(self, now: float) -> list[Action]:
        """Return what to send, start and stop now."""
        actions: list[Action] = []
        surplus = len(self._workers) + self._starting - self._slow() - self.size
        for worker, state in list(self._workers.items()):
            if state.task is not None:
                continue
            is_worn_out = state.scored >= self.max_items
            task = None if is_worn_out else self._next_task(surplus > 0)
            if task is not None:
                state.task, state.since, state.slow = task, now, task.slow
                actions.append(Send(worker, task))
                surplus -= task.slow
            elif is_worn_out or surplus > 0:
                surplus -= 1
                del self._workers[worker]
                actions.append(Stop(worker))
        present, slow = len(self._workers) + self._starting, self._slow()
        missing = max(0, min(self.size + slow, self.size + self.spare) - present)
        self._starting += missing
        return actions + [StartWorker()] * missing

    def _next_task(self, only_slow: bool) -> ItemTask | None:
        if self._slow_queue and self._may_be_slow():
            return self._slow_queue.popleft()
        return self._queue.popleft() if self._queue and not only_slow else None

    def _may_be_slow(self) -> bool:
        """Tell whether one more worker may be on a slow item."""
        return self._slow() < self.size + self.spare - self.reserve

    def _slow(self) -> int:
        return sum(worker.slow for worker in self._workers.values())
