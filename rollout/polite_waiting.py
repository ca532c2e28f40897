"""vLLM on few cores: waiting for a message without taking a core from whoever makes the message.

vLLM's engine and its worker process pass each step through shared memory and spin on it
(`sched_yield` in a loop). That is right with cores to spare. On two cores it takes half of one
from the API server, the learner and the worker loop, and the kernel's scheduler at times leaves
those waiting for a second and more. Measured with a model of 1.1 M parameters on two cores: 213 µs
of CPU time a token with spinning, 148 µs with sleeps of 50 µs, at the same or higher throughput.

With `forgetting` the one place where Headrace changes vLLM's own code, and only in processes that
it owns, on CPUs: the function is replaced by name, so a vLLM without it goes on as it is.
"""

import os
import time

# A process with this many cores can afford to spin.
ENOUGH_CORES = 8
WAIT_SECONDS = 50e-6


def wait_politely() -> bool:
    """Replace the spinning. Returns whether there was any to replace."""
    if (os.cpu_count() or 1) >= ENOUGH_CORES:
        return False
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or not hasattr(shm_broadcast, "sched_yield"):
        return False
    shm_broadcast.sched_yield = _wait
    return True


def _wait() -> None:
    time.sleep(WAIT_SECONDS)
