"""Finds the checkpoint that a call asks for, and the worker that serves it. If no worker does, the
pool's workers are asked to load it, and the call ends with 503 and words that say what happens."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

import anyio.to_thread

from headrace.wording import counted, predicate
from services.contracts.records import NOT_SERVING, RunRecord, WorkerRecord
from services.contracts.served_models import ModelDemand
from services.gateway.openai.answers import problem_of
from services.gateway.openai.errors import SessionProblem
from services.gateway.policy.served_models import Asked, not_found, serving
from services.store import Store
from services.volume.checkpoint import NAME

WAIT_SECONDS = 5.0
"""How long a call waits for a worker. A swap of models of one architecture is faster."""
POLL_SECONDS = 0.25
BUSY_CALLS = 8
"""Calls of each worker from which on another worker is asked to serve the model, too."""
LOAD_SECONDS = 5.0
"""Usual seconds of a load without a start of vLLM."""
NOBODY_SECONDS = 30.0
"""Seconds after which it is worth asking again if no worker is free."""
SERVE = "`headrace up --serving 1` starts a worker that only serves"


async def demand_for(
    root: Path, run: RunRecord, asked: Asked, workers: Sequence[WorkerRecord]
) -> ModelDemand | None:
    """Return the checkpoint that answers a call; None: the run's workers answer while it trains.
    Raises SessionProblem if there is no such checkpoint."""
    if run.kind == "rl" and not run.state.ending:
        ready = serving(workers, run)
        if asked.version is None or any(worker.version == asked.version for worker in ready):
            return None
    kept = await anyio.to_thread.run_sync(kept_steps, root, run)
    step = max(kept, default=None) if asked.version is None else asked.version
    if step in kept:
        return ModelDemand(run.id, step, kept[step])
    if run.kind == "rl" and not run.state.ending and serving(workers, run):
        # Its error names the versions that are served.
        return None
    name = f"run {run.name} ({run.id}), which {predicate(run.state)},"
    if not kept:
        raise not_found(
            f"{name} has no checkpoint, so there is no model to ask: `headrace logs {run.id}` and "
            f"`headrace why {run.id}` say how far it came"
        )
    steps = ", ".join(f"{run.id}@{step}" for step in sorted(kept, reverse=True)[:20])
    raise not_found(f"{name} has no checkpoint of step {step}: ask for one of {steps}")


def kept_steps(root: Path, run: RunRecord) -> dict[int, str]:
    """Return the committed checkpoints of a run by step, each relative to `root`."""
    folder = root / "runs" / run.id / "checkpoints"
    kept: dict[int, str] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        name = NAME.fullmatch(path.name)
        if name is not None and int(name[1]) <= run.committed_step:
            kept[int(name[1])] = str(path.relative_to(root))
    # A run that continues another one begins with that run's checkpoint.
    current = NAME.fullmatch(Path(run.checkpoint).name) if run.checkpoint else None
    if current is not None and run.checkpoint and (root / run.checkpoint).is_dir():
        kept[int(current[1])] = run.checkpoint
    return kept


async def model_worker(
    store: Store, run: RunRecord, demand: ModelDemand, calls: Mapping[str, int]
) -> WorkerRecord:
    """Return the worker with the fewest `calls` that serves the model, after some seconds at most.
    Raises SessionProblem 503 that says what happens meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        workers = await store.workers.list(run.pool)
        able = [w for w in workers if demand.model in w.models and w.state not in NOT_SERVING]
        busy = able and all(worker.policy_calls >= BUSY_CALLS for worker in able)
        free = [worker for worker in workers if may_serve(worker) and worker not in able]
        if not able or (busy and free):
            wanted = ModelDemand(demand.run, demand.step, demand.directory, len(able))
            living = {worker.id for worker in workers if worker.state not in NOT_SERVING}
            state = await store.model_demands.want(run.pool, wanted, living)
            if not able and state.failure is not None:
                raise problem_of(state.failure)
        if able:
            return min(able, key=lambda worker: calls.get(worker.id, 0))
        if not free or time.monotonic() > deadline:
            raise waiting(run, demand, workers, state.worker)
        await asyncio.sleep(POLL_SECONDS)


def may_serve(worker: WorkerRecord) -> bool:
    """Whether a worker serves models of finished runs now, or would."""
    return worker.state not in NOT_SERVING and (worker.serving_only or worker.run is None)


def waiting(
    run: RunRecord, demand: ModelDemand, workers: Sequence[WorkerRecord], holder: str | None
) -> SessionProblem:
    """Return 503 with what happens to a demand, and when it is worth asking again."""
    named = {worker.id: worker for worker in workers}
    loads = named.get(holder or "")
    free = [worker for worker in workers if may_serve(worker)]
    if loads is not None and loads.loading == demand.model:
        seconds = remaining(loads)
        return _later(f"worker {loads.id} loads {demand.model}; about {seconds} s", seconds)
    if free:
        others = sorted(
            {model for worker in free for model in [*worker.models, worker.loading] if model}
        )
        why = f", after {', '.join(others[:5])}" if others else ""
        names = ", ".join(worker.id for worker in free[:5])
        return _later(f"{demand.model} waits for worker {names}{why}", LOAD_SECONDS)
    if not workers:
        return _later(
            f"pool {run.pool} has no worker that could serve {demand.model}: {SERVE}",
            NOBODY_SECONDS,
        )
    busy = sorted({worker.run for worker in workers if worker.run is not None})
    work = f"work on run {', '.join(busy)}" if busy else "are not ready"
    return _later(
        f"the {counted(len(workers), 'worker')} of pool {run.pool} {work}, and training comes "
        f"first: {demand.model} is served after that. {SERVE}",
        NOBODY_SECONDS,
    )


def remaining(worker: WorkerRecord) -> int:
    """Return about how many seconds a worker still needs to load its model."""
    usual = worker.usual_start_seconds
    if worker.starting_seconds is None or usual is None:
        return math.ceil(LOAD_SECONDS if worker.starting_seconds is None else NOBODY_SECONDS)
    return max(2, math.ceil(usual - worker.starting_seconds + LOAD_SECONDS))


def _later(message: str, seconds: float) -> SessionProblem:
    return SessionProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        message,
        "model",
        "model_not_ready",
        {"Retry-After": str(math.ceil(seconds))},
    )
