"""Hands one GPU to learner and vLLM in turn, with locks on files (flock).

The lock `use` is held by the present user of the GPU: the learner, or the worker whose vLLM is
awake. The learner holds `wanted` from its request for the GPU until it leaves the GPU: the worker
then lets vLLM sleep. A worker holds `sampler` while it has a vLLM, awake or asleep: another worker
on this GPU waits. The kernel frees the locks of a process that dies.
"""

import asyncio
import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from services.runtime.file_lock import try_lock

POLL_SECONDS = 0.05


class Handover:
    """Takes one GPU for this process, and leaves it to others."""

    def __init__(self, folder: Path, gpu: str) -> None:
        """`folder` is shared by learner and worker; `gpu` is the GPU's UUID."""
        folder.mkdir(parents=True, exist_ok=True)
        self._use, self._wanted, self._sampler = (
            (folder / f"{gpu}.{name}.lock").open("a") for name in ("use", "wanted", "sampler")
        )

    def begin_to_train(self, gives_up: Callable[[], bool]) -> bool:
        """Take the GPU for the learner. Returns True once no vLLM is awake there, or False if
        `gives_up` returns true before."""
        for lock in (self._wanted, self._use):
            while not try_lock(lock):
                if gives_up():
                    self.leave()
                    return False
                time.sleep(POLL_SECONDS)
        return True

    async def begin_to_sample(self) -> None:
        """Take the GPU for a vLLM. Returns once the learner neither has it nor wants it, and no
        other worker has a vLLM there."""
        while True:
            if try_lock(self._sampler) and not self.wanted and try_lock(self._use):
                return
            await asyncio.sleep(POLL_SECONDS)

    @property
    def wanted(self) -> bool:
        """Whether a learner wants the GPU, or has it."""
        free = try_lock(self._wanted)
        if free:
            fcntl.flock(self._wanted, fcntl.LOCK_UN)
        return not free

    def leave(self) -> None:
        """Leave the GPU to the other side."""
        for lock in (self._use, self._wanted):
            fcntl.flock(lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the GPU for good."""
        for lock in (self._use, self._wanted, self._sampler):
            lock.close()
