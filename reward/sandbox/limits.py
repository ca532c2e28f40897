"""What a program may use, and the limits that the kernel sets on each of its processes.

`cgroup` has the kernel limit all processes of a program together, where the service may make
cgroups. Elsewhere a program gets fewer processes and descriptors, and `host` measures what they use
together. The size of the folder in memory limits all of a program's files. Imports only the
standard library: it runs in the sandbox too.
"""

import resource
import signal
from typing import NamedTuple

HOME_BYTES = 64 << 20
"""All files of a program together."""

PAUSE, RESUME = signal.SIGUSR1, signal.SIGUSR2
"""Have a program's first process stop all others, and continue them."""


class Numbers(NamedTuple):
    """How many a program may have."""

    processes: int
    """Threads count as processes do."""
    files: int
    """Open descriptors of each process. A socket or pipe holds up to 208 KiB."""


WITH_CGROUP = Numbers(processes=32, files=256)
WITHOUT_CGROUP = Numbers(processes=16, files=64)
"""They bound what no limit counts: so many times the memory of one process, and the buffers."""


SIGNALS = 1024
"""Timers and queued signals of all processes of a program together."""


class Limits(NamedTuple):
    """What a program, with all its processes, may use."""

    seconds: float
    """CPU time of all its processes together."""
    wall_seconds: float
    """Time by the clock, without what it waits for a CPU."""
    memory_bytes: int
    file_bytes: int = 16 << 20
    """The largest file, and so the most output."""
    latest_seconds: float = 3600.0
    """Time by the clock, whatever it waits for."""


def limit_process(memory: int, file: int, seconds: int, numbers: Numbers) -> None:
    """Limit this process and each that it starts: bytes, bytes, seconds of CPU time, numbers.

    Raises ValueError for more memory than the worker itself may have.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if memory > most != resource.RLIM_INFINITY:
        raise ValueError("memory_mb is more than a worker may have; raise --worker-memory-mb")
    for limit, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NPROC, numbers.processes, numbers.processes),
        (resource.RLIMIT_NOFILE, numbers.files, numbers.files),
        (resource.RLIMIT_CORE, 0, 0),
        # Timers and queued signals, for which the kernel has memory that is counted for nobody.
        (resource.RLIMIT_SIGPENDING, SIGNALS, SIGNALS),
        # A signal that programs can ignore, and a second later one that they cannot.
        (resource.RLIMIT_CPU, seconds, seconds + 1),
    ):
        resource.setrlimit(limit, (soft, hard))
