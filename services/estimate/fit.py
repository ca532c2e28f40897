"""Estimate a run: the memory of its pool, the disk, whether it fits, and the ways out."""

from collections.abc import Iterator, Sequence

from services.contracts.config import RLConfig
from services.contracts.devices import LearnerDevices
from services.estimate.answer import DiskNeed, Estimate, HostNeed, ProcessNeed
from services.estimate.disk import disk_need, rollout_bytes
from services.estimate.host_memory import cpu_learner_need, host_advice, host_need
from services.estimate.inputs import Config, Model, Worker, gigabytes
from services.estimate.learner_memory import (
    TIGHT,
    learner_advice,
    learner_budget,
    learner_need,
    pass_of,
)
from services.estimate.rollout_memory import cpu_rollout_need, rollout_advice, rollout_need

MUCH = 2_000_000_000
"""Bytes of rollouts that a submission mentions."""
CERTAIN = 1.1
"""Estimates are within 10 %: a run that needs over 1.1 times the memory cannot fit."""


def estimate_run(
    config: Config,
    model: Model,
    learner: LearnerDevices | None,
    workers: Sequence[Worker],
    disk_free: int | None = None,
) -> Estimate:
    """Estimate a run of a checked config.

    `learner`, `workers`: the devices of the run's pool; None and empty if unknown.
    `disk_free`: bytes of the data volume that are free for runs.
    """
    on_gpu = [worker for worker in workers if worker.gpus]
    unknown = [*_unknown(learner, workers, isinstance(config, RLConfig))]
    workers_known = bool(workers)
    # An unknown side of the pool computes on CPUs if the other side does.
    if learner is None and workers and not on_gpu:
        learner = LearnerDevices(ranks=1, gpus=[])
    if learner is not None and not learner.gpus and not workers:
        workers = [Worker(())]
    rollout = None
    if isinstance(config, RLConfig):
        rollout = (
            rollout_need(config, model, learner, on_gpu)
            if on_gpu or not workers
            else cpu_rollout_need(config, model, learner, workers)
        )
    if learner is not None and not learner.gpus:
        need, host = cpu_learner_need(config, model, learner, workers, rollout), None
    else:
        budget = learner_budget(config, learner, on_gpu)
        need = learner_need(config, model, learner, budget)
        host = host_need(config, model, learner, pass_of(config, model, learner, budget))
    if rollout is not None and rollout.on_cpu and rollout.memory is None and workers_known:
        unknown.append("the workers sample on CPUs, and have not said yet how much memory is free")
    disk = disk_need(config, model, disk_free)
    if need.fits is False:
        need.advice = [*learner_advice(config, need)]
    if rollout is not None and rollout.fits is False and isinstance(config, RLConfig):
        rollout.advice = [*rollout_advice(config, rollout)]
    fits = [part.fits for part in (need, rollout) if part is not None]
    if host is not None and host.fits is False:
        host.advice = [*host_advice(config, host)]
        fits.append(False)
    return Estimate(
        learner=need,
        rollout=rollout,
        host=host,
        disk=disk,
        fits=False if False in fits else None if None in fits else True,
        notes=[*unknown, *_close(need, rollout, host, disk), *_rollouts(config)],
    )


def _rollouts(config: Config) -> Iterator[str]:
    """Say what the kept rollouts of a run take if that is much. They are not in the disk that the
    run needs, because a full disk loses them and the run goes on."""
    if isinstance(config, RLConfig) and config.training.max_steps:
        step = rollout_bytes(config)
        if (total := step * config.training.max_steps) >= MUCH:
            yield (
                f"trained answers are kept in up to {gigabytes(total)} of the data volume, "
                f"{step / 1e6:.1f} MB a step (rollout.keep_share); if it is full, they are lost, "
                "and the run goes on"
            )


def cannot_fit(need: ProcessNeed | HostNeed) -> bool:
    """Whether a part exceeds its memory by more than the error of the estimate. On CPUs the length
    of answers decides how much a pass takes, so only the rest is certain."""
    passes = ("activations", "logits") if isinstance(need, ProcessNeed) and need.on_cpu else ()
    certain = need.needed - sum(need.parts.get(name, 0) for name in passes)
    return need.most is not None and certain > CERTAIN * need.most


def _unknown(
    learner: LearnerDevices | None, workers: Sequence[Worker], samples: bool
) -> Iterator[str]:
    """Say which machines are not known, and what is assumed. `samples`: whether the run needs
    workers."""
    if learner is None:
        on_cpu = workers and not any(worker.gpus for worker in workers)
        assumed = "CPUs are assumed, as the workers have" if on_cpu else "one GPU is assumed"
        yield f"no learner of this pool has said what it computes on: {assumed}"
    elif not learner.gpus and learner.host is None:
        yield "the learner computes on CPUs, and its host has not said how much memory is free"
    if samples and not workers:
        on_cpu = learner is not None and not learner.gpus
        assumed = "CPUs are assumed, as the learner has" if on_cpu else "one GPU is assumed"
        yield f"no rollout worker of this pool has said what it samples on: {assumed}"


def _close(
    need: ProcessNeed, rollout: ProcessNeed | None, host: HostNeed | None, disk: DiskNeed
) -> Iterator[str]:
    """Say what fits only just, and what the disk is for."""
    for part in (need, rollout, host):
        if part and part.fits and part.memory and part.needed > TIGHT * part.memory:
            yield (
                f"{gigabytes(part.needed)} of {gigabytes(part.memory)} is tight: estimates are "
                "within 10 %"
            )
    if in_files := disk.parts.get("groups"):
        yield (
            f"of the disk, {gigabytes(in_files)} are for finished groups that are too large for "
            "Redis, of completions of all their tokens; HEADRACE_PAYLOADS_URL puts them into a "
            "bucket, and a lower training.checkpoint_every needs less"
        )
