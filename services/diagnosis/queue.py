"""Diagnoses why a queued run has not started."""

from headrace.wording import duration
from services.contracts.records import Queue, RunSummary
from services.contracts.why import Situation
from services.diagnosis.phase import seconds_left
from services.diagnosis.verdict import Verdict


def queued(now: Situation) -> Verdict:
    positions = {now.run.id: len(now.ahead)} if now.queued else {}
    return queued_verdict(now.run, Queue(now.active, now.ahead, positions, now.learner is not None))


def queued_verdict(run: RunSummary, queue: Queue) -> Verdict:
    """Return why a queued run has not started."""
    active, queued = queue.active, run.id in queue.positions
    ahead = queue.positions.get(run.id, 0)
    is_active = active is not None and active.id == run.id
    if not queued and not is_active:
        return "queued", (
            "it stands in no queue: the gateway died while it was submitted. Cancel it and "
            "submit it again"
        )
    others = f", and {ahead} more in the queue" if ahead and active else ""
    if not queue.learner:
        first = "" if active is None or is_active else f"{active.name} ({active.id})"
        behind = f"; {first} would go first{others}" if first else ""
        return "no_learner", f"it is queued, and no learner serves pool {run.pool!r}{behind}"
    if active is not None and not is_active:
        # A run that only evaluates has no steps.
        at = "" if active.max_steps == 0 else f" at step {active.step} of {active.max_steps or '?'}"
        if (left := seconds_left(active)) is not None:
            at += f" and has about {duration(left)} left"
        return "queued", (
            f"it waits for {active.name} ({active.id}), which is {active.state}{at}{others}"
        )
    if ahead:
        return (
            "queued",
            f"it waits for {', '.join(queue.first[: min(ahead, 3)])}, first in the queue",
        )
    return "queued", "it is next: the learner takes it up within a second"
