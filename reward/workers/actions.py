"""Values that scheduler and pool exchange: tasks, how a worker was lost, and actions for the pool.
No I/O.
"""

from dataclasses import dataclass
from enum import StrEnum

from reward.verifiers.base import ItemWork, Verdict, broken
from services.contracts.scores import ScoreStatus


class Cause(StrEnum):
    """How a worker was lost."""

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
    step: ItemWork = ItemWork.SCORE
    slow: bool = False
    """Whether the item is known to take longer than `slow_after`."""
    failures: int = 0
    excused: int = 0
    """The number of lost workers for which the item is most likely not to blame."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Action: start one more worker. `started` or `not_started` follows."""


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send these tasks to that worker."""

    worker: int
    tasks: tuple[ItemTask, ...]


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


def conclude(task: ItemTask, verdict: Verdict) -> Done:
    """Decide, after a check of the reference alone, whether the reference or the completion is to
    blame."""
    if verdict.status is ScoreStatus.ERROR:
        return Done(task.ticket, verdict)
    return _timed_out(task)


def _timed_out(task: ItemTask) -> Done:
    detail = f"not finished in {task.limit:g} s, twice"
    if task.on_timeout is None:
        return Done(task.ticket, broken(detail))
    return Done(task.ticket, Verdict(ScoreStatus.TIMEOUT, task.on_timeout, detail))
