"""How learner and vLLM divide a GPU that both use.

vLLM gets the worker's own share, or the usual one. If that leaves the learner or vLLM too little,
vLLM gets another share. If no share is enough for both, they take turns: vLLM sleeps while the
learner trains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.contracts.config import RLConfig
from services.contracts.devices import LearnerDevices
from services.estimate.answer import ProcessNeed
from services.estimate.host_memory import asleep_bytes, moved_bytes
from services.estimate.inputs import Model, Worker, gigabytes
from services.estimate.learner_memory import TIGHT, learner_budget, learner_need, pass_of
from services.estimate.rank_bytes import RUNTIME
from services.estimate.rollout_memory import ALONE, ASLEEP, SHARED, rollout_need, vllm_share

SHARE = "rollout.vllm.gpu_memory_utilization"
PERCENT = range(int(ALONE * 100), 0, -1)
"""Shares to try, in hundredths. vLLM gets what the learner leaves."""


@dataclass(frozen=True)
class Division:
    share: float | None
    """vLLM's share of the GPU's memory; None if learner or vLLM does not fit even alone."""
    words: str
    """For people: why it is not the usual share."""
    sleeps: bool = False
    """Whether vLLM has that share only while the learner does not train."""


def division(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> Division | None:
    """Return the division of the GPU if it must differ from the usual one. Return None if learner
    and worker do not share one GPU, if the config names vLLM's share, or if the usual share leaves
    both enough."""
    if config.rollout.vllm.gpu_memory_utilization is not None or learner is None:
        return None
    used = {gpu.uuid for worker in workers for gpu in worker.gpus}
    # Several workers divide vLLM's share among them.
    if len(workers) != 1 or len(learner.gpus) != 1 or used != {learner.gpus[0].uuid}:
        return None
    memory = learner.gpus[0].memory
    before = vllm_share(config, workers, True)
    trains, samples = _needs(config, model, learner, workers, before)
    if _enough(trains) and samples.fits:
        return None
    lacks = "the learner" if not _enough(trains) else "vLLM"
    reason = "as is usual where both share a GPU"
    if before != SHARED:
        reason = "the worker's HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"
    usual = f"with {before:g}, {reason}, {lacks} would have too little"
    for percent in PERCENT:
        share = percent / 100
        trains, samples = _needs(config, model, learner, workers, share)
        if _enough(trains):
            break
    needs = (
        f"the learner needs {gigabytes(trains.needed)} and a tenth to spare, vLLM "
        f"{gigabytes(samples.needed)}, of {gigabytes(memory)}"
    )
    if _enough(trains) and samples.fits:
        return Division(share, f"{SHARE} is {share:g}: {usual} ({needs})")
    return _turns(config, model, learner, workers, needs) or Division(
        None,
        f"learner and vLLM share one GPU and do not fit on it together, whatever {SHARE} is, nor "
        f"in turns: {needs}; give the worker a GPU of its own, here or on another machine",
    )


def _turns(
    config: RLConfig,
    model: Model,
    learner: LearnerDevices,
    workers: Sequence[Worker],
    needs: str,
) -> Division | None:
    """Let learner and vLLM take turns: each has the GPU while the other is on the host. Return None
    if learner or vLLM does not fit even then. `needs`: in words, what both need side by side."""
    memory = learner.gpus[0].memory
    # The learner keeps what CUDA itself has, and vLLM never takes more than it takes alone.
    percent = math.floor(100 * min(ALONE, 1 - RUNTIME / memory))
    if percent < 1:
        return None
    share = percent / 100
    trains, samples = _needs(config, model, learner, workers, share, sleeps=True)
    if not (_enough(trains) and samples.fits):
        return None
    divided = with_share(config, share, sleeps=True)
    how = pass_of(divided, model, learner, trains.memory)
    moved = moved_bytes(divided, model, how) + asleep_bytes(divided, model)
    return Division(
        share,
        f"learner and vLLM take turns on this GPU, because they do not fit on it side by side "
        f"({needs}): while the learner trains, vLLM sleeps and keeps {gigabytes(ASLEEP)}; while "
        f"vLLM samples, the learner's state is in the host's memory, which needs "
        f"{gigabytes(moved)} for both",
        sleeps=True,
    )


def with_share(config: RLConfig, share: float, sleeps: bool = False) -> RLConfig:
    """The config with this share of a GPU for vLLM, which `sleeps` while the learner trains."""
    update = {"gpu_memory_utilization": share, "sleeps": sleeps}
    vllm = config.rollout.vllm.model_copy(update=update)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"vllm": vllm})})


def _needs(
    config: RLConfig,
    model: Model,
    learner: LearnerDevices,
    workers: Sequence[Worker],
    share: float,
    sleeps: bool = False,
) -> tuple[ProcessNeed, ProcessNeed]:
    """Return the needs of learner and vLLM if vLLM takes this share."""
    divided = with_share(config, share, sleeps)
    budget = learner_budget(divided, learner, workers)
    trains = learner_need(divided, model, learner, budget)
    return trains, rollout_need(divided, model, learner, workers)


def _enough(trains: ProcessNeed) -> bool:
    """Whether the learner fits even if the estimate is too low by a tenth: vLLM gives nothing
    back."""
    return trains.memory is not None and trains.needed <= TIGHT * trains.memory
