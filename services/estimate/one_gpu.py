"""How learner and vLLM divide a GPU that both have: with the worker's own share for vLLM or the
usual one, or with another where that leaves one of them too little."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.contracts.config import RLConfig
from services.contracts.devices import LearnerDevices
from services.estimate.answer import GPUNeed
from services.estimate.given import Model, Worker, gigabytes
from services.estimate.learner import TIGHT, learner_budget, learner_need
from services.estimate.rollout import ALONE, SHARED, rollout_need, vllm_share

SHARE = "rollout.vllm.gpu_memory_utilization"
PERCENT = range(int(ALONE * 100), 0, -1)
"""Shares to try, in hundredths. vLLM gets what the learner leaves."""


@dataclass(frozen=True)
class Division:
    """What becomes of a GPU that learner and vLLM share."""

    share: float | None
    """Of its memory, for vLLM; None: both do not fit on it together."""
    words: str
    """For people: why it is not the usual share."""


def division(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> Division | None:
    """Another division of the one GPU of learner and worker than the usual one. None where there is
    no such GPU, where the config names vLLM's share, and where the usual one leaves both enough."""
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
    return Division(
        None,
        f"learner and vLLM share one GPU and do not fit on it together, whatever {SHARE} is: "
        f"{needs}; give the worker a GPU of its own, here or on another machine",
    )


def with_share(config: RLConfig, share: float) -> RLConfig:
    """The config with this share of a GPU for vLLM."""
    vllm = config.rollout.vllm.model_copy(update={"gpu_memory_utilization": share})
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"vllm": vllm})})


def _needs(
    config: RLConfig,
    model: Model,
    learner: LearnerDevices,
    workers: Sequence[Worker],
    share: float,
) -> tuple[GPUNeed, GPUNeed]:
    """Of learner and vLLM, where vLLM takes this share."""
    divided = with_share(config, share)
    budget = learner_budget(divided, learner, workers)
    trains = learner_need(divided, model, learner, budget)
    return trains, rollout_need(divided, model, learner, workers)


def _enough(trains: GPUNeed) -> bool:
    """Whether the learner fits even if the estimate is too low by a tenth: vLLM gives nothing
    back."""
    return trains.memory is not None and trains.needed <= TIGHT * trains.memory
