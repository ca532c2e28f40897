"""Assigns items to workers, and finds the item to blame when a worker is lost.

The scheduler is a state machine over plain values. It has no processes, I/O or clock (callers pass
the time). The pool reports events, and carries out the returned actions.

Invariants:

* A worker takes its items in the order they were sent, and answers each before the next. So it
  works on the first unanswered item: blame is exact, and the other items lose only time.
* An item is blamed at most twice for the same thing: then it gets a verdict. The second try runs
  alone on a fresh worker.
* A worker that has been on one item for `slow_after` seconds no longer counts towards `size`. The
  items behind that item go to other workers.
* Slow items never take all workers: `reserve` workers are always left for items that may yet be
  quick. If the slow items have taken all other workers, an item that turns out slow loses its
  worker. It waits, blameless, until it may be slow. So no item waits longer than `slow_after`
  behind a poisonous one.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from reward.verifiers.base import ItemWork, Verdict, broken
from reward.workers.actions import (
    Action,
    Cause,
    Done,
    ItemTask,
    Kill,
    Send,
    StartWorker,
    Stop,
    conclude,
)

EXCUSED_MAX = 4
"""After this number of workers lost by other causes, the item itself counts as the cause."""
_EXCUSES = (Cause.ORPHANED, Cause.UNREAD)


@dataclass(slots=True)
class _Sent:
    task: ItemTask
    taken_back: bool = False


@dataclass(slots=True)
class _Worker:
    sent: deque[_Sent] = field(default_factory=deque)
    since: float = 0.0
    scored: int = 0
    slow: bool = False


class WorkerSchedule:
    """The state of all workers and tasks. Times are seconds of any monotonic clock."""

    def __init__(
        self,
        size: int,
        *,
        spare: int,
        chunk: int = 16,
        slow_after: float = 0.2,
        max_items: int = 20_000,
    ) -> None:
        self.size = size
        self.spare = spare
        self.reserve = min(size + spare - 1, max(1, size // 4))
        self.chunk = chunk
        self.slow_after = slow_after
        self.max_items = max_items
        self._queue: deque[ItemTask] = deque()
        self._slow_queue: deque[ItemTask] = deque()
        self._suspects: deque[ItemTask] = deque()
        self._slow_suspects: deque[ItemTask] = deque()
        self._workers: dict[int, _Worker] = {}
        self._starting = 0

    @property
    def waiting(self) -> int:
        """Return the number of tasks that no worker has been given."""
        return sum(map(len, (self._queue, self._slow_queue, self._suspects, self._slow_suspects)))

    @property
    def workers(self) -> tuple[int, int, int]:
        """Return how many workers are idle, busy, slow."""
        slow = sum(worker.slow for worker in self._workers.values())
        idle = sum(not worker.sent for worker in self._workers.values())
        return idle, len(self._workers) - idle - slow, slow

    def add(self, tasks: list[ItemTask]) -> None:
        for task in tasks:
            (self._slow_queue if task.slow else self._queue).append(task)

    def withdraw(self, tickets: Container[int]) -> list[int]:
        """Forget the tasks of `tickets` that no worker has been given. Return their tickets."""
        withdrawn: list[int] = []
        for queue in (self._queue, self._slow_queue, self._suspects, self._slow_suspects):
            withdrawn += [task.ticket for task in queue if task.ticket in tickets]
            kept = [task for task in queue if task.ticket not in tickets]
            queue.clear()
            queue.extend(kept)
        return withdrawn

    def started(self, worker: int) -> None:
        """Add a new worker, which can take tasks."""
        self._starting = max(0, self._starting - 1)
        self._workers[worker] = _Worker()

    def not_started(self) -> None:
        """Record that an ordered worker will not come. The next plan orders another worker."""
        self._starting = max(0, self._starting - 1)

    def answered(self, worker: int, verdict: Verdict, now: float) -> list[Action]:
        """Record the worker's verdict on its first unanswered task."""
        state = self._workers[worker]
        sent = state.sent.popleft()
        state.since = now
        state.slow = False
        state.scored += 1
        if sent.taken_back:
            return []
        # With failures, this check follows a scoring that did not finish. Without, the check was
        # all that the request asked for.
        if sent.task.step is ItemWork.REFERENCE and sent.task.failures:
            return [conclude(sent.task, verdict)]
        return [Done(sent.task.ticket, verdict)]

    def lost(self, worker: int) -> ItemTask | None:
        """Record that the worker died by itself, and return its current task. Pass that task to
        `blame` once the cause of death is known. The tasks behind it go back to the front of the
        queue."""
        state = self._workers.pop(worker, None)
        return self._take_back(state) if state is not None else None

    def blame(self, task: ItemTask, cause: Cause, detail: str) -> list[Action]:
        """Blame `task` for the end of a worker. `detail` says how it ended, for the verdict."""
        if cause in _EXCUSES and task.excused < EXCUSED_MAX:
            task.excused += 1
            self._suspect(task)
            return []
        if task.step is ItemWork.RUN:
            return [Done(task.ticket, broken(f"the program was not run: {detail}"))]
        if task.step is ItemWork.REFERENCE:
            late = f"did not finish in {task.limit:g} s"
            what = late if cause is Cause.DEADLINE else f"broke the verifier ({detail})"
            return [Done(task.ticket, broken(f"checking the reference alone {what}"))]
        task.failures += 1
        task.slow = task.slow or cause is Cause.DEADLINE
        if task.failures < 2:
            self._suspect(task)
            return []
        if cause is not Cause.DEADLINE:
            return [Done(task.ticket, broken(f"the verifier's process died twice: {detail}"))]
        task.step = ItemWork.REFERENCE
        self._suspect(task)
        return []

    def _suspect(self, task: ItemTask) -> None:
        (self._slow_suspects if task.slow else self._suspects).append(task)

    def tick(self, now: float) -> list[Action]:
        """Kill workers whose item is over its deadline. Give items behind slow ones to other
        workers."""
        actions: list[Action] = []
        for worker, state in list(self._workers.items()):
            if not state.sent:
                continue
            head = state.sent[0]
            if now - state.since >= head.task.limit:
                del self._workers[worker]
                actions.append(Kill(worker, head.task))
                culprit = self._take_back(state)
                if culprit is not None:
                    late = f"no result after {culprit.limit:g} s"
                    actions += self.blame(culprit, Cause.DEADLINE, late)
            elif not state.slow and now - state.since >= self.slow_after:
                actions += self._turned_slow(worker, state)
        return actions

    def _turned_slow(self, worker: int, state: _Worker) -> list[Action]:
        """Give the items behind a slow item to other workers. The slow item goes too if too many
        are slow already."""
        head = state.sent[0]
        head.task.slow = True
        if self._may_be_slow():
            state.slow = True
            behind = [sent for sent in list(state.sent)[1:] if not sent.taken_back]
            for sent in behind:
                sent.taken_back = True
            self._queue.extendleft(reversed([sent.task for sent in behind]))
            return []
        del self._workers[worker]
        interrupted = self._take_back(state)
        if interrupted is not None and interrupted.failures:
            self._slow_suspects.append(interrupted)
        elif interrupted is not None:
            self._slow_queue.append(interrupted)
        return [Stop(worker)]

    def due(self) -> float | None:
        """Return when `tick` must run next. Return None while no worker is busy."""
        times = [
            state.since
            + (
                state.sent[0].task.limit
                if state.slow
                else min(self.slow_after, state.sent[0].task.limit)
            )
            for state in self._workers.values()
            if state.sent
        ]
        return min(times, default=None)

    def plan(self, now: float) -> list[Action]:
        """Return what to send, start and stop now."""
        idle = [worker for worker, state in self._workers.items() if not state.sent]
        actions: list[Action] = []
        for worker in self._to_stop(idle):
            idle.remove(worker)
            del self._workers[worker]
            actions.append(Stop(worker))
        for worker in idle:
            state = self._workers[worker]
            tasks = self._next_tasks(state)
            if tasks:
                state.sent.extend(_Sent(task) for task in tasks)
                state.since = now
                state.slow = tasks[0].slow
                actions.append(Send(worker, tasks))
        missing = self._missing()
        self._starting += missing
        return actions + [StartWorker()] * missing

    def _next_tasks(self, state: _Worker) -> tuple[ItemTask, ...]:
        if self._suspects and state.scored == 0:
            return (self._suspects.popleft(),)
        if self._slow_suspects and state.scored == 0 and self._may_be_slow():
            return (self._slow_suspects.popleft(),)
        if self._slow_queue and self._may_be_slow():
            return (self._slow_queue.popleft(),)
        # A share large enough to hide the round trip, and small enough that all workers end
        # together.
        share = len(self._queue) // (2 * self.size)
        count = min(len(self._queue), max(1, min(self.chunk, share)))
        return tuple(self._queue.popleft() for _ in range(count))

    def _to_stop(self, idle: list[int]) -> list[int]:
        """Return the idle workers to stop: worn out, surplus, or in the way of a suspect's fresh
        worker."""
        used = [worker for worker in idle if self._workers[worker].scored > 0]
        fresh = len(idle) - len(used) + self._starting + self._missing()
        worn_out = [worker for worker in used if self._workers[worker].scored >= self.max_items]
        others = [worker for worker in used if worker not in worn_out]
        surplus = len(self._workers) - len(worn_out) - self._slow() + self._starting - self.size
        needed = max(0, surplus, self._suspects_due() - fresh - len(worn_out))
        return worn_out + others[:needed]

    def _missing(self) -> int:
        present = len(self._workers) + self._starting
        return max(0, min(self.size + self._slow() - present, self.size + self.spare - present))

    def _suspects_due(self) -> int:
        """Return how many suspects could be tried now, given fresh workers."""
        free = max(0, self.size + self.spare - self.reserve - self._slow())
        return len(self._suspects) + min(len(self._slow_suspects), free)

    def _may_be_slow(self) -> bool:
        """Tell whether one more worker may be on a slow item."""
        return self._slow() < self.size + self.spare - self.reserve

    def _slow(self) -> int:
        return sum(worker.slow for worker in self._workers.values())

    def _take_back(self, state: _Worker) -> ItemTask | None:
        """Return the task to blame, if the worker still has it. The other tasks go back to the
        queue."""
        if not state.sent:
            return None
        head, *rest = state.sent
        self._queue.extendleft(reversed([sent.task for sent in rest if not sent.taken_back]))
        return None if head.taken_back else head.task
