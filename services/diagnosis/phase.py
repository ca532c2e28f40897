"""Says in a few words what a run does now, for lists. Pure.

`diagnose` says why; the phase says what, from a run's summary and the workers of its pool alone.
"""

from collections.abc import Sequence

from headrace.wording import counted, on_request
from services.contracts.records import NOT_SERVING, SILENT, RunState, RunSummary, WorkerRecord


def phase(run: RunSummary, workers: Sequence[WorkerRecord]) -> str:
    """Return what a run that is not queued does now. `workers`: those of its pool."""
    if run.state.final:
        return _ended(run)
    if run.state is RunState.QUEUED:
        return "waits in its queue" if run.queue_position is None else place(run.queue_position)
    if run.state is RunState.PAUSED:
        by = f", {on_request(run.paused_by)}" if run.paused_by else ""
        return f"paused at {_step(run)}{by}"
    if run.state is RunState.CANCELLING:
        return "ends after its present step"
    starts = pool_starts(workers) if run.kind == "rl" else None
    if run.state is RunState.STARTING:
        then = "; then it pauses" if run.paused_by else ""
        return f"the learner loads the model{f'; {starts}' if starts else ''}{then}"
    if run.paused_by:
        return "pauses after its present step"
    if starts:
        return starts
    here = [worker for worker in workers if worker.run == run.id]
    if run.kind == "rl" and all(worker.state in NOT_SERVING for worker in here):
        return "waits for a worker"
    if run.max_steps is not None and run.step >= run.max_steps:
        return "evaluates" if run.max_steps == 0 else "ends: last evaluation and checkpoint"
    return f"trains step {run.step + 1}{'' if run.max_steps is None else f' of {run.max_steps}'}"


def place(position: int) -> str:
    """Return a place in a queue, from 1, in words."""
    return "next in its queue" if position == 1 else f"waits, number {position} in its queue"


def seconds_left(run: RunSummary) -> float | None:
    """Return how long the remaining steps of a run take at its present pace; None if that is not
    known, or the run does not train."""
    if run.state is not RunState.RUNNING or run.step_seconds is None or run.max_steps is None:
        return None
    return round(max(0, run.max_steps - run.step) * run.step_seconds, 1)


def pool_starts(workers: Sequence[WorkerRecord]) -> str | None:
    """Return how far the start of vLLM is, if all living workers of a pool start theirs. Return
    None otherwise. The worker that began first counts."""
    alive = [worker for worker in workers if worker.state != SILENT]
    if not alive or any(worker.state != "starting" for worker in alive):
        return None
    first = max(alive, key=lambda worker: worker.starting_seconds or 0.0)
    return vllm_start(first) or "vLLM is about to start"


def vllm_start(worker: WorkerRecord) -> str | None:
    """Return how far the start of a worker's vLLM is; None if it does not start."""
    if worker.starting_seconds is None:
        return None
    if worker.usual_start_seconds is None:
        return f"vLLM starts, {worker.starting_seconds:.0f} s so far"
    return f"vLLM starts, {worker.starting_seconds:.0f} of about {worker.usual_start_seconds:.0f} s"


def _ended(run: RunSummary) -> str:
    if run.max_steps == 0:
        return str(run.state)
    if run.state is RunState.SUCCEEDED:
        return f"{run.state} after {counted(run.step, 'step')}"
    return f"{run.state} at {_step(run)}" if run.step else f"{run.state} before its first step"


def _step(run: RunSummary) -> str:
    return f"step {run.step}{'' if run.max_steps is None else f' of {run.max_steps}'}"
