"""The division of a machine's GPUs between training, generating and scoring.

`plan_gpus` is pure: devices in, environments out. The workers themselves
claim their GPUs, with locks (`rollout.vllm.process.gpu_lock`).
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from headrace.wording import counted
from services.launch.cores import has_accelerator
from services.launch.options import LaunchError
from services.runtime.gpus import (
    ALONE_MEMORY,
    DRIVER,
    GPU,
    SHARED_MEMORY,
    GPUSettings,
    GPUsUnknown,
    installed_device,
    listed_gpus,
    names_in,
    shown,
    visible_gpus,
)
from services.runtime.logs import get_logger

log = get_logger(__name__)


class UpGPUSettings(GPUSettings):
    """The operator's settings of GPUs, including the reward service's."""

    reward_gpus: str = ""
    reward_models: list[str] = Field(default_factory=list)

    @property
    def loaded_models(self) -> int:
        """Number of reward models that the reward service loads. Models with a URL are loaded
        elsewhere."""
        return sum("://" not in model for model in self.reward_models)


@dataclass(frozen=True, kw_only=True)
class GPUPlan:
    """How a machine's GPUs are divided. With only one, everything shares it."""

    visible: tuple[GPU, ...]
    """At least one."""
    learner: tuple[GPU, ...]
    """The learner's; () if none runs here and none is named."""
    reward: tuple[GPU, ...]
    """For reward models; () if none is loaded here."""
    workers: tuple[GPU, ...]
    """Those that rollout workers may take."""
    per_worker: int
    locks: Path
    """The folder of the workers' locks."""
    memory: float | None
    """Share of a GPU that vLLM takes, if the operator names one."""

    @property
    def shared(self) -> bool:
        return len(self.visible) == 1

    def refuse(self, workers: int) -> None:
        """Raise LaunchError if there are too few GPUs for this many `workers`."""
        most = len(self.workers) // self.per_worker
        if workers <= most or (self.shared and self.per_worker == 1):
            return
        each = f"{self.per_worker} GPUs" if self.per_worker > 1 else "a GPU"
        trains = f"the learner has {_named(self.learner)}" if self.learner else "none trains"
        scores = f", reward models have {_named(self.reward)}" if self.reward else ""
        raise LaunchError(
            f"{counted(workers, 'rollout worker')}, each with {each} of its own: "
            f"of the GPUs here ({_named(self.visible)}) {trains}{scores}, so there is room for "
            f"{most}. Ask for fewer (--rollouts, `headrace scale rollout=N`), or give the learner "
            "fewer (--ranks, HEADRACE_LEARNER_GPUS) or each worker (HEADRACE_GPUS_PER_WORKER), or "
            "start workers on another machine. Where CUDA_VISIBLE_DEVICES shows one GPU, all share "
            "it"
        )

    def learner_environment(self) -> dict[str, str]:
        """Return the variables of all ranks. Each rank takes the device of its own number among
        those shown."""
        return {} if self.shared else shown(self.learner)

    def reward_environment(self) -> dict[str, str]:
        """Return the variables of the reward service."""
        if self.shared or not self.reward:
            return {}
        return {"HEADRACE_REWARD_GPUS": ",".join(gpu.index for gpu in self.reward)}

    def rollout_environment(self, engines: int) -> dict[str, str]:
        """Return the variables of one of `engines` rollout workers."""
        if self.shared:
            if self.memory is not None:
                return {}
            # Workers that run keep their share; the next start divides it evenly again.
            share = (SHARED_MEMORY if self.learner else ALONE_MEMORY) / max(engines, 1)
            return {"HEADRACE_VLLM_GPU_MEMORY_UTILIZATION": f"{share:.3f}"}
        environment = {
            "HEADRACE_GPU_LOCKS": str(self.locks),
            "HEADRACE_LEARNER_GPUS": ",".join(gpu.index for gpu in self.learner),
        }
        if set(self.reward) & set(self.workers):
            # Any worker may be the one that takes a reward model's GPU.
            if self.memory is None:
                environment["HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"] = f"{SHARED_MEMORY:.3f}"
        elif self.reward:
            environment |= shown([gpu for gpu in self.visible if gpu not in self.reward])
        return environment


def plan_gpus(
    visible: Sequence[GPU], ranks: int, rollouts: int, settings: UpGPUSettings, locks: Path
) -> GPUPlan | None:
    """Divide the `visible` GPUs; None without GPUs.

    `ranks`: the learner's ranks here, 0 without a learner. `rollouts`: workers to start. `locks`:
    the folder of locks unless the settings name another.

    The learner gets the first GPUs. Reward models get the last, one each, as far as workers and
    learner leave some; else they share the workers' last one, or without workers the learner's.
    Raises LaunchError if GPUs that are named do not exist, or the learner has too few.
    """
    if not visible:
        return None
    learner = _chosen(visible, "HEADRACE_LEARNER_GPUS", settings.learner_gpus) or visible[:ranks]
    if len(learner) < ranks:
        names = settings.learner_gpus
        named = f"HEADRACE_LEARNER_GPUS={names} names" if names else "there are"
        raise LaunchError(
            f"--ranks {ranks}: each rank needs a GPU of its own, and {named} {len(learner)} of "
            f"{_seen(visible)}: ask for fewer ranks, or show more (CUDA_VISIBLE_DEVICES)"
        )
    free = [gpu for gpu in visible if gpu not in learner]
    reward = _chosen(visible, "HEADRACE_REWARD_GPUS", settings.reward_gpus)
    if reward:
        workers = [gpu for gpu in free if gpu not in reward]
    else:
        spare = max(0, len(free) - rollouts * settings.gpus_per_worker)
        count_of_reward = min(spare, settings.loaded_models)
        workers = free[: len(free) - count_of_reward]
        if settings.loaded_models:
            reward = free[len(free) - count_of_reward :] or (free or list(visible))[-1:]
    return GPUPlan(
        visible=tuple(visible),
        learner=tuple(learner),
        reward=tuple(reward),
        workers=tuple(visible) if len(visible) == 1 else tuple(workers),
        per_worker=settings.gpus_per_worker,
        locks=settings.gpu_locks or locks,
        memory=settings.vllm_gpu_memory_utilization,
    )


def _chosen(visible: Sequence[GPU], variable: str, names: str) -> list[GPU]:
    """Return the `visible` GPUs that the operator names. Raises LaunchError if a named GPU is
    missing."""
    chosen = [gpu for gpu in visible if gpu.named_in(names_in(names))]
    if names_in(names) and not chosen:
        raise LaunchError(
            f"{variable}={names} names none of {_seen(visible)}: name some of them, by number or "
            "UUID, or leave it out"
        )
    return chosen


def gpus_here(environment: Mapping[str, str]) -> list[GPU]:
    """Return the GPUs that a process with this environment sees. Return none if the installed vLLM
    is the build for CPUs, or if no nvidia-smi can list them."""
    if installed_device() == "cpu" or not has_accelerator() or shutil.which(DRIVER) is None:
        return []
    try:
        return visible_gpus(listed_gpus(), environment)
    except GPUsUnknown as error:
        log.warning("the GPUs are not divided", reason=str(error))
        return []


def _seen(visible: Sequence[GPU]) -> str:
    return f"those that this process sees ({_named(visible)})"


def _named(gpus: Sequence[GPU]) -> str:
    return ", ".join(gpu.index for gpu in gpus)
