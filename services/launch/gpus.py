"""Which GPUs train and which generate, on a machine that has some.

`plan_gpus` is pure: devices in, environments out. Which worker takes which of the GPUs that are
left to them is for the workers to settle (`rollout.gpus`), by locks that outlive nobody.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.gpus import (
    ALONE_MEMORY,
    GPU,
    LIST,
    SHARED_MEMORY,
    GPUSettings,
    GPUsUnknown,
    installed_device,
    listed_gpus,
    names_in,
    shown,
    visible_gpus,
)
from services.launch.cores import has_accelerator
from services.launch.options import LaunchError
from services.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class GPUPlan:
    """How a machine's GPUs are divided. With only one, the learner and all workers share it."""

    visible: tuple[GPU, ...]
    """At least one."""
    learner: tuple[GPU, ...]
    """Those of the learner; () where none runs here and none is named."""
    per_worker: int
    locks: Path
    """The folder of the workers' locks."""
    memory: float | None
    """Share of a GPU that vLLM takes, where the operator says it."""

    @property
    def shared(self) -> bool:
        """Whether there is one GPU for everything."""
        return len(self.visible) == 1

    def refuse(self, workers: int) -> None:
        """Raise LaunchError where there are too few GPUs for so many workers."""
        left = len(self.visible) - len(self.learner)
        if self.shared or workers * self.per_worker <= left:
            return
        each = f"{self.per_worker} GPUs" if self.per_worker > 1 else "a GPU"
        trains = f"the learner has {_named(self.learner)}" if self.learner else "none trains"
        raise LaunchError(
            f"{workers} rollout worker{'s' if workers != 1 else ''}, each with {each} of its own: "
            f"of the GPUs here ({_named(self.visible)}) {trains}, so there is room for "
            f"{left // self.per_worker}. Ask for fewer (--rollouts, `headrace scale rollout=N`), "
            "or give the learner fewer (--ranks, HEADRACE_LEARNER_GPUS), or start workers on "
            "another machine. Where CUDA_VISIBLE_DEVICES shows one GPU, all share it"
        )

    def learner_environment(self) -> dict[str, str]:
        """For all ranks together: each takes the device of its own number among those shown."""
        return {} if self.shared else shown(self.learner)

    def rollout_environment(self, engines: int) -> dict[str, str]:
        """For a rollout worker that is one of `engines`."""
        if self.shared:
            if self.memory is not None:
                return {}
            # Those that run keep what they have: it is divided evenly again at the next start.
            share = (SHARED_MEMORY if self.learner else ALONE_MEMORY) / max(engines, 1)
            return {"HEADRACE_VLLM_GPU_MEMORY_UTILIZATION": f"{share:.3f}"}
        return {
            "HEADRACE_GPU_LOCKS": str(self.locks),
            "HEADRACE_LEARNER_GPUS": ",".join(gpu.index for gpu in self.learner),
        }


def plan_gpus(
    visible: Sequence[GPU], ranks: int, settings: GPUSettings, locks: Path
) -> GPUPlan | None:
    """Divide the `visible` GPUs; None where there are none. `ranks`: of the learner here, 0 without
    one. `locks`: the folder of locks unless the settings name one. Raises LaunchError where the
    learner's GPUs do not exist or do not suffice."""
    if not visible:
        return None
    names = names_in(settings.learner_gpus)
    learner = tuple(gpu for gpu in visible if gpu.named_in(names)) if names else visible[:ranks]
    seen = f"those that this process sees ({_named(visible)})"
    if names and not learner:
        raise LaunchError(
            f"HEADRACE_LEARNER_GPUS={settings.learner_gpus} names none of {seen}: name some of "
            "them, by number or UUID, or leave it out"
        )
    if len(learner) < ranks:
        named = f"HEADRACE_LEARNER_GPUS={settings.learner_gpus} names" if names else "there are"
        raise LaunchError(
            f"--ranks {ranks}: each rank needs a GPU of its own, and {named} {len(learner)} of "
            f"{seen}: ask for fewer ranks, or show more (CUDA_VISIBLE_DEVICES)"
        )
    return GPUPlan(
        visible=tuple(visible),
        learner=tuple(learner),
        per_worker=settings.gpus_per_worker,
        locks=settings.gpu_locks or locks,
        memory=settings.vllm_gpu_memory_utilization,
    )


def gpus_here(environment: Mapping[str, str]) -> list[GPU]:
    """The GPUs that a process with this environment sees; none where the installed vLLM is the
    build for CPUs, or where only the driver of another make could list them."""
    if installed_device() == "cpu" or not has_accelerator() or shutil.which(LIST[0]) is None:
        return []
    try:
        return visible_gpus(listed_gpus(), environment)
    except GPUsUnknown as error:
        log.warning("the GPUs are not divided", reason=str(error))
        return []


def _named(gpus: Sequence[GPU]) -> str:
    return ", ".join(gpu.index for gpu in gpus)
