"""Which CPU cores generate and which train, on a machine without a GPU.

`plan_cores` is pure: ids in, ids out. Left to themselves, vLLM servers each bind to the same cores,
and torch starts a thread for every core there is, those of vLLM's pinned threads included. How much
the division gains is not measured yet.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


def bound_to(cores: Sequence[int]) -> dict[str, str]:
    """The environment that has vLLM's engine pin its threads to `cores`."""
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}


@dataclass(frozen=True)
class CorePlan:
    """Logical core ids: one tuple for each vLLM engine, one for each learner rank."""

    rollouts: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[int, ...], ...]

    def rollout_environment(self, index: int) -> dict[str, str]:
        """For rollout worker `index`. vLLM's engine pins its threads to these cores; its API server
        and the worker loop stay free to run wherever there is room."""
        return bound_to(self.rollouts[index])

    @property
    def generating(self) -> tuple[int, ...]:
        """The cores that vLLM engines have, or, where none was planned for, all there are."""
        shares = self.rollouts or self.ranks
        return tuple(dict.fromkeys(core for share in shares for core in share))

    def learner_environment(self) -> dict[str, str]:
        """For all ranks together: torchrun passes one environment to each of them."""
        threads = min((len(cores) for cores in self.ranks), default=1)
        return {"OMP_NUM_THREADS": str(threads)}


def plan_cores(cores: Sequence[Sequence[int]], rollouts: int, ranks: int) -> CorePlan:
    """Divide `cores` (each the logical ids of one physical core) between vLLM engines and ranks.

    With a physical core for each of them, no two share one, hyper-threads stay idle (as vLLM itself
    prefers), and one core, if any is left, belongs to nobody: Redis, the gateway, the API servers
    and the worker loops run there. The odd core goes to generation. With fewer, logical ids are
    dealt out; the two sides share a core only if there is just one. Where only one side runs, it
    gets everything.
    """
    if not cores:
        raise ValueError("plan_cores needs at least one core")
    parts = rollouts + ranks
    whole = len(cores) >= parts
    ids = [core[0] for core in cores] if whole else [id_ for core in cores for id_ in core]
    if rollouts and ranks and len(ids) > parts:
        ids = ids[:-1]
    if not rollouts or not ranks or len(ids) == 1:
        generating, training = ids, ids
    elif len(ids) >= parts:
        # At least one for each on both sides, else half and half.
        count = max(rollouts, min(len(ids) - ranks, (len(ids) + 1) // 2))
        generating, training = ids[:count], ids[count:]
    else:
        count = max(1, len(ids) * rollouts // parts)
        generating, training = ids[:count], ids[count:]
    return CorePlan(_deal(generating, rollouts), _deal(training, ranks))


def join_cores(
    generating: Sequence[int], held: Sequence[Sequence[int]], engines: int
) -> tuple[int, ...]:
    """Cores for one more vLLM engine, when there will be `engines` of them.

    An even share of the `generating` cores, those first that the fewest others hold. What runs
    keeps the cores that it `held`: an engine that has pinned its threads cannot be moved, so they
    are divided evenly again only at the next start.
    """
    load = Counter(core for cores in held for core in cores)
    fewest = sorted(generating, key=lambda core: (load[core], generating.index(core)))
    return tuple(sorted(fewest[: max(1, len(generating) // engines)]))


def _deal(ids: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """`ids` in `parts` contiguous shares, as even as can be; single ids in turn if too few."""
    if len(ids) < parts:
        return tuple((ids[i % len(ids)],) for i in range(parts))
    bounds = [len(ids) * i // parts for i in range(parts + 1)] if parts else [0]
    return tuple(tuple(ids[a:b]) for a, b in pairwise(bounds))


def physical_cores(allowed: Sequence[int], siblings: Mapping[int, str]) -> list[tuple[int, ...]]:
    """Group `allowed` logical ids into physical cores.

    `siblings` maps an id to the kernel's list of the ids on its core ("0,4" or "0-1"); an id
    without one is a core of its own.
    """
    groups: dict[str, list[int]] = {}
    for id_ in sorted(allowed):
        groups.setdefault(siblings.get(id_, f"only {id_}"), []).append(id_)
    return sorted(tuple(group) for group in groups.values())


def cores_here() -> list[tuple[int, ...]]:
    """The physical cores this process may use (its affinity mask, which cgroup cpusets narrow)."""
    allowed = sorted(os.sched_getaffinity(0))
    siblings = {}
    for id_ in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{id_}/topology/thread_siblings_list")
        if path.exists():
            siblings[id_] = path.read_text().strip()
    return physical_cores(allowed, siblings)


def has_accelerator() -> bool:
    """Whether an NVIDIA or AMD accelerator is there and not hidden from this process."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


def place_here(rollouts: int, ranks: int) -> CorePlan | None:
    """The plan for this machine; None if it has an accelerator."""
    return None if has_accelerator() else plan_cores(cores_here(), rollouts, ranks)
