"""Chooses the policy that a request's `model` names, and the worker that answers."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec

from services.contracts.openai_models import read_fine_tuned_name
from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.gateway.openai.errors import SessionProblem

LATEST = "latest"
RETRY_SECONDS = 5


class Asked(msgspec.Struct, frozen=True):
    """A run, and the requested version of its policy; None: the newest version of any worker."""

    run: str
    version: int | None = None


def parse_model(model: object) -> Asked:
    """Parse `RUN`, `RUN@latest`, `RUN@STEP`, or the name of a fine-tuned model. Raises
    SessionProblem."""
    if not isinstance(model, str) or not model:
        raise SessionProblem(
            HTTPStatus.BAD_REQUEST,
            "model: must be a run: RUN, RUN@latest, or RUN@STEP for the policy after STEP steps; "
            "GET /v1/models lists the runs that are served",
            "model",
        )
    if (named := read_fine_tuned_name(model)) is not None:
        return Asked(*named)
    run, _, version = model.rpartition("@")
    if run and version == LATEST:
        return Asked(run)
    if run and version.isascii() and version.isdigit() and len(version) < 10:
        return Asked(run, int(version))
    return Asked(model)


def serving(workers: Sequence[WorkerRecord], run: RunRecord) -> list[WorkerRecord]:
    """Return the workers that serve a version of the run's policy, newest version first."""
    ready = [worker for worker in workers if worker.serves(run.id)]
    # A learner that took the run over may have gone back; prefer versions of its lineage.
    newest = [worker for worker in ready if worker.lineage == run.lineage] or ready
    return sorted(newest, key=lambda worker: worker.version or 0, reverse=True)


def worker_for(
    version: int | None,
    run: RunRecord,
    workers: Sequence[WorkerRecord],
    calls: Mapping[str, int],
) -> WorkerRecord:
    """Return the worker with the fewest `calls` that has `version` (None: the newest). Raise
    SessionProblem if no worker serves it."""
    ready = serving(workers, run)
    if not ready:
        raise _nobody(run)
    version = ready[0].version if version is None else version
    able = [worker for worker in ready if worker.version == version]
    if not able:
        served = ", ".join(f"{run.id}@{number}" for number in _versions(ready))
        raise not_found(
            f"no worker serves version {version} of run {run.name} ({run.id}): a worker serves one "
            f"version at a time, now {served}. Ask for one of these, for {run.id}@latest, or for "
            f"the step of a checkpoint (`headrace checkpoints {run.id}`)"
        )
    return min(able, key=lambda worker: calls.get(worker.id, 0))


def names_of(run: RunRecord, workers: Sequence[WorkerRecord]) -> list[str]:
    """List the values of `model` that select this run now."""
    ready = serving(workers, run)
    return [run.id, *(f"{run.id}@{number}" for number in _versions(ready))] if ready else []


def _versions(workers: Sequence[WorkerRecord]) -> list[int]:
    return sorted({worker.version or 0 for worker in workers}, reverse=True)


def _nobody(run: RunRecord) -> SessionProblem:
    name = f"run {run.name} ({run.id})"
    waits = (
        "its workers are starting, or it has none: `headrace workers` lists them"
        if run.state is RunState.RUNNING
        else "it is answered once the run's learner and workers have started"
    )
    return SessionProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{name} is {run.state} and no worker serves it yet: {waits}",
        "model",
        "model_not_ready",
        {"Retry-After": str(RETRY_SECONDS)},
    )


def not_found(message: str, status: int = HTTPStatus.NOT_FOUND) -> SessionProblem:
    """Return 404 for a model that does not exist."""
    return SessionProblem(status, message, "model", "model_not_found")
