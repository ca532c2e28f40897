"""Where the memory, time, processes and files of a program under test are limited.

`limit_process` has the kernel limit each process of a program. `host` watches what all of them use
together, and the wall clock; the size of the folder in memory limits all of a program's files.
Imports only the standard library: it runs in the sandbox too.
"""

import resource
from typing import NamedTuple

FILES = 256
"""Descriptors that a program may have open."""
HOME_BYTES = 64 << 20
"""All files of a program together."""


class Limits(NamedTuple):
    """What a program, with all its processes, may use."""

    seconds: float
    """CPU time of each process, and of those that it has waited for."""
    wall_seconds: float
    memory_bytes: int
    processes: int = 32
    file_bytes: int = 16 << 20
    """The largest file, and so the most output."""


def limit_process(memory: int, file: int, processes: int, seconds: int) -> None:
    """Limit this process and each that it starts: bytes, bytes, number, seconds of CPU time.

    Raises ValueError for more memory than the worker itself may have.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if memory > most != resource.RLIM_INFINITY:
        raise ValueError("memory_mb is more than a worker may have; raise --worker-memory-mb")
    for limit, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_NOFILE, FILES, FILES),
        (resource.RLIMIT_CORE, 0, 0),
        # A signal that programs can ignore, and a second later one that they cannot.
        (resource.RLIMIT_CPU, seconds, seconds + 1),
    ):
        resource.setrlimit(limit, (soft, hard))
