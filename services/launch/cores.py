"""Divide the CPU cores between vLLM engines and learner ranks, on a machine without a GPU.

`plan_cores` is pure: ids in, ids out. Without a plan each vLLM server binds itself to the same
cores, and torch starts a thread for every core there is.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.runtime.gpus import hides_gpus
from services.runtime.threads import WAITING

Cores = tuple[int, ...]
"""Logical core ids."""


@dataclass(frozen=True)
class CorePlan:
    """The cores of vLLM engines and of learner ranks."""

    generating: Cores
    """All cores that engines may have."""
    rollouts: tuple[Cores, ...]
    ranks: tuple[Cores, ...]

    def learner_environment(self) -> dict[str, str]:
        """Return the variables of all ranks: the ranks share one environment."""
        return {"OMP_NUM_THREADS": str(min((len(cores) for cores in self.ranks), default=1))}

    def joining(self, held: Sequence[Cores], engines: int) -> Cores:
        """Choose cores for one more engine, when there will be `engines`.

        The engine gets an even share of the generating cores, the least used first. `held`: the
        cores of the running engines. They keep them, because an engine cannot move its threads.
        """
        load = Counter(core for cores in held for core in cores)
        fewest = sorted(self.generating, key=lambda core: (load[core], core))
        return tuple(sorted(fewest[: max(1, len(fewest) // engines)]))


def bound_to(cores: Sequence[int]) -> dict[str, str]:
    """Return the variables by which vLLM's engine pins one thread to each of `cores`.

    The number of threads is fixed from then on: vLLM computes wrongly if it changes."""
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), **WAITING}


def plan_cores(cores: Sequence[int], rollouts: int, ranks: int) -> CorePlan:
    """Divide `cores` between vLLM engines and ranks, half and half, the odd one to the engines.

    If there are more cores than engines and ranks, the last one stays free for Redis, the gateway
    and the API servers. If there are fewer, engines share cores among themselves, and so do ranks;
    engines and ranks share only a single core. If one of the two is missing, the other gets all.
    """
    if not cores:
        raise ValueError("plan_cores needs at least one core")
    generating = training = tuple(cores)
    if rollouts and ranks and len(cores) > 1:
        usable = tuple(cores[:-1] if len(cores) > rollouts + ranks else cores)
        half = min((len(usable) + 1) // 2, len(usable) - ranks)
        count = min(max(half, rollouts), len(usable) - 1)
        generating, training = usable[:count], usable[count:]
    return CorePlan(generating, _dealt(generating, rollouts), _dealt(training, ranks))


def _dealt(cores: Cores, parts: int) -> tuple[Cores, ...]:
    """Split `cores` into `parts` contiguous shares of about equal size. If there are fewer cores
    than parts, parts share single cores."""
    if len(cores) < parts:
        return tuple((cores[i % len(cores)],) for i in range(parts))
    return tuple(
        cores[len(cores) * i // parts : len(cores) * (i + 1) // parts] for i in range(parts)
    )


def cores_here(parts: int) -> list[int]:
    """List the cores that this process may use (its affinity mask, which cgroup cpusets narrow). As
    vLLM prefers, each physical core has one logical id, unless `parts` need more."""
    allowed = sorted(os.sched_getaffinity(0))
    first: dict[str, int] = {}
    for core in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else str(core), core)
    return list(first.values()) if len(first) >= parts else allowed


def has_accelerator(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has an NVIDIA or AMD accelerator. An accelerator does not count if
    CUDA_VISIBLE_DEVICES, or for AMD HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, hides it from this
    process: the variable is empty, or begins with a negative number."""
    if hides_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")):
        return False
    if any(devices.glob("nvidia[0-9]*")):
        return True
    amd = (os.environ.get(f"{name}_VISIBLE_DEVICES") for name in ("HIP", "ROCR"))
    return (devices / "kfd").exists() and not any(map(hides_gpus, amd))


def place_here(rollouts: int, ranks: int) -> CorePlan | None:
    """Return the plan for this machine, or None if it has an accelerator."""
    if has_accelerator():
        return None
    return plan_cores(cores_here(rollouts + ranks), rollouts, ranks)
