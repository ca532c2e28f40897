"""The limits of a program, and the part of them that the kernel sets on each of its processes.

If the service may make cgroups, `cgroup` limits all processes of a program together. If not, a
program gets fewer processes and descriptors, and `running_program` measures their total use. The
size of the folder in memory limits all files of a program. The module imports only the standard
library, because it runs in the sandbox too.
"""

import resource
import signal
from typing import NamedTuple

HOME_BYTES = 64 << 20
"""The size of all files of a program together."""

PAUSE, RESUME = signal.SIGUSR1, signal.SIGUSR2
"""Signals to a program's first process: stop all other processes, and continue them."""


class Numbers(NamedTuple):
    """How many processes and descriptors a program may have."""

    processes: int
    """Threads count as processes."""
    files: int
    """Open descriptors of each process. A socket or pipe holds up to 208 KiB."""


WITH_CGROUP = Numbers(processes=32, files=256)
WITHOUT_CGROUP = Numbers(processes=16, files=64)
"""These numbers bound what no limit counts: the memory of each process times their number, and the
buffers."""


STACK_BYTES = 120 << 20
"""The stack of a process. With the usual 8 MiB a function with `functools.cache` crashes at a
depth of 20,000. The kernel keeps 128 MiB free for a stack."""
SIGNALS = 1024
"""Timers and queued signals of all processes of a program together."""


class Limits(NamedTuple):
    """The limits of a program with all its processes."""

    seconds: float
    """CPU time of all processes together."""
    wall_seconds: float
    """Wall time without the waits for a CPU."""
    memory_bytes: int
    file_bytes: int = 16 << 20
    """The largest file, and so the largest output."""
    latest_seconds: float = 3600.0
    """Wall time, waits for a CPU included."""


def limit_process(memory: int, file: int, seconds: int, numbers: Numbers) -> None:
    """Limit this process and each process that it starts: bytes, bytes, seconds of CPU time,
    numbers.

    Raises ValueError for more memory than the worker itself may have.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if memory > most != resource.RLIM_INFINITY:
        raise ValueError("memory_mb is more than a worker may have; raise --worker-memory-mb")
    # Programs of contests raise the limit themselves.
    largest = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK_BYTES if largest == resource.RLIM_INFINITY else min(largest, STACK_BYTES)
    for limit, soft, hard in (
        (resource.RLIMIT_STACK, stack, largest),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NPROC, numbers.processes, numbers.processes),
        (resource.RLIMIT_NOFILE, numbers.files, numbers.files),
        (resource.RLIMIT_CORE, 0, 0),
        # The kernel has memory for timers and queued signals, and counts it for no process.
        (resource.RLIMIT_SIGPENDING, SIGNALS, SIGNALS),
        # Programs can ignore the first signal, but not SIGKILL, which follows a second later.
        (resource.RLIMIT_CPU, seconds, seconds + 1),
    ):
        resource.setrlimit(limit, (soft, hard))
