"""Finds which workers could sample, and why the others do not."""

from services.contracts.records import WorkerRecord
from services.contracts.why import Situation
from services.diagnosis.phase import vllm_start
from services.diagnosis.verdict import Verdict

GIB = 1 << 30

UNABLE = ("starting", "unhealthy", "stopping")
"""States of a worker that samples nothing."""


def unable(now: Situation) -> Verdict | None:
    """Return why no worker can sample, or None if one can."""
    if not now.alive:
        return "no_worker", _nobody(now)
    if any(worker.state not in UNABLE for worker in now.alive):
        return None
    if all(worker.state == "unhealthy" for worker in now.alive):
        return "vllm", f"no worker is healthy. {now.alive[0].id}: {now.alive[0].error}"
    return not_ready(now)


def not_ready(now: Situation) -> Verdict:
    """Describe the state of each worker, when no vLLM is ready."""
    starts = [(worker, vllm_start(worker)) for worker in now.alive]
    names = [f"{w.id}: {words}" if words else f"{w.id} is {w.state}" for w, words in starts]
    return "vllm", f"no worker has its vLLM ready yet ({', '.join(names + _silent(now))})"


def lagging(workers: list[WorkerRecord], version: int) -> Verdict | None:
    """Return the worker that lacks the newest weights, or None."""
    for worker in workers:
        if worker.version is None or worker.version < version:
            has = "no version" if worker.version is None else f"version {worker.version}"
            why = f": {worker.error}" if worker.error else ""
            return "weights", f"{worker.id} has {has} and needs {version}{why}"
    return None


def nothing_sampled(workers: list[WorkerRecord]) -> Verdict:
    """Describe the state of workers that could sample and hold no task."""
    states = [
        f"{worker.id} is {worker.state}{f' ({worker.error})' if worker.error else ''}"
        for worker in workers
    ]
    return "rollout", f"nothing is being sampled: {', '.join(states)}"


def more_workers(alive: list[WorkerRecord]) -> str:
    """Return a sentence that says whether another worker would help, and on which host. Only the
    operator knows of further GPUs."""
    full = []
    for worker in alive:
        if (load := worker.host_load) is None:
            return "More workers help, or a higher rollout.max_staleness"
        figures = (
            f"{worker.host}: {load.idle_cores:.1f} of {load.cores} cores idle, "
            f"{load.free_memory / GIB:.1f} GiB free, and a worker uses {load.memory / GIB:.1f}"
        )
        if load.idle_cores >= 1 and load.free_memory > load.memory:
            return (
                f"Another worker helps, there is room for it ({figures}); or a higher "
                "rollout.max_staleness"
            )
        full.append(figures)
    return (
        f"No host has room for another worker ({'; '.join(full)}): a worker on another machine "
        "helps, or a higher rollout.max_staleness"
    )


def _nobody(now: Situation) -> str:
    silent = _silent(now)
    return "no worker is alive" + (f" ({', '.join(silent)})" if silent else "")


def _silent(now: Situation) -> list[str]:
    silent = [worker for worker in now.workers if worker not in now.alive]
    return [f"{worker.id} was heard of {now.heard(worker):.0f} s ago" for worker in silent]
