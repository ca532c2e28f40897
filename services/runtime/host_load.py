"""The load of this Linux machine: idle cores, free memory, and the memory of a process tree."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Files with the limit and use of a container's memory, in version 2 and 1."""


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that processes here can still allocate: on the machine, or within this
    container's limit if that is less. The page cache counts as free."""
    free = _meminfo(proc, "MemAvailable")
    for limit, used in CGROUPS:
        try:
            allowed = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
            stat = ((cgroup / used).parent / "memory.stat").read_text()
        except (OSError, ValueError):
            # No such file, or `max`: no limit.
            continue
        cached = re.findall(r"^inactive_file (\d+)", stat, re.M)
        free = min(free, allowed + sum(map(int, cached)))
    return max(0, free)


def total_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory of this machine, or of this container's limit if that is less."""
    total = _meminfo(proc, "MemTotal")
    for limit, _ in CGROUPS:
        try:
            total = min(total, int((cgroup / limit).read_text()))
        except (OSError, ValueError):
            # No such file, or `max`: no limit.
            continue
    return total


def _meminfo(proc: Path, name: str) -> int:
    text = (proc / "meminfo").read_text()
    return int(re.findall(rf"{name}: +(\d+)", text)[0]) * 1024


def memory_of(pid: int) -> int:
    """Return the bytes that `pid` and its descendants have in memory, without memory shared with
    others."""
    total = 0
    for member in tree(pid):
        try:
            _, resident, shared, *_ = map(int, Path(f"/proc/{member}/statm").read_text().split())
        except (OSError, ValueError):
            continue
        total += (resident - shared) * PAGE
    return total


def tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(c) for thread in threads for c in (thread / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from tree(child)


def vllm_cores() -> list[int]:
    """Return the cores that vLLM's engine is bound to, or all of this process if it is unbound."""
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "")
    allowed = sorted(os.sched_getaffinity(0))
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", bound):
        return allowed
    ranges = [[int(end) for end in part.split("-")] for part in bound.split(",")]
    return [core for ends in ranges for core in range(ends[0], ends[-1] + 1)]


class IdleCores:
    """Measures how many of some cores are idle."""

    def __init__(self, cores: Sequence[int], proc: Path = Path("/proc")) -> None:
        self._names = {f"cpu{core}" for core in cores}
        self._proc = proc
        self._before = self._idle(), time.monotonic()

    def since_last(self) -> float:
        """Return the cores that were idle on average since the last call."""
        idle, now = self._idle(), time.monotonic()
        before, at = self._before
        self._before = idle, now
        return min(float(len(self._names)), (idle - before) / max(now - at, 1e-3))

    def _idle(self) -> float:
        """Return the seconds that the cores have been idle since boot, added up."""
        lines = (line.split() for line in (self._proc / "stat").read_text().splitlines())
        return sum(
            (int(fields[4]) + int(fields[5])) / TICKS
            for fields in lines
            if fields[0] in self._names
        )
