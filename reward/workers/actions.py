"""What the scheduler and the pool tell each other: tasks, how a worker was lost, and the actions
that the pool carries out.

Plain values, without I/O.
"""

from dataclasses import dataclass
from enum import StrEnum

from reward.verifiers.base import Step, Verdict, broken
from services.contracts.scores import ScoreStatus


class Cause(StrEnum):
    """How a worker was lost."""

    DEADLINE = "deadline"
    DIED = "died"
    ORPHANED = "orphaned"
    """All workers died at once, with their parent: most likely not for this item."""
    UNREAD = "unread"
    """The worker died before it read the item: somebody else killed it."""


@dataclass(slots=True)
class Task:
    """One item, without its content."""

    ticket: int
    limit: float
    """Seconds that it may take."""
    on_timeout: float | None
    """The reward after two deadlines; None masks it."""
    step: Step = Step.SCORE
    slow: bool = False
    """It is known to take longer than `slow_after`."""
    failures: int = 0
    excused: int = 0
    """How many lost workers were most likely not its fault."""


@dataclass(frozen=True, slots=True)
class Start:
    """Action: start one more worker; `started` follows, or `not_started`."""


@dataclass(frozen=True, slots=True)
class Send:
    """Action: send these tasks to that worker."""

    worker: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Action: end that worker, without blaming an item; the schedule has forgotten it."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Action: kill that worker, whatever it does; the schedule has forgotten it."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Done:
    """Action: that ticket has its verdict."""

    ticket: int
    verdict: Verdict


Action = Start | Send | Stop | Kill | Done


def conclude(task: Task, verdict: Verdict) -> Done:
    """After the reference was checked alone: is it to blame, or the completion?"""
    if verdict.status is ScoreStatus.ERROR:
        return Done(task.ticket, verdict)
    return _timed_out(task)


def _timed_out(task: Task) -> Done:
    detail = f"not finished in {task.limit:g} s, twice"
    if task.on_timeout is None:
        return Done(task.ticket, broken(detail))
    return Done(task.ticket, Verdict(ScoreStatus.TIMEOUT, task.on_timeout, detail))
