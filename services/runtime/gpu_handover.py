"""Who has a GPU that learner and vLLM use one after the other: locks on files (flock).

`use` is held by the one that has the GPU: the learner, or the worker whose vLLM is awake. `wanted`
is held by the learner from when it asks for the GPU until it leaves it, so that the worker sees
when vLLM has to sleep. `sampler` is held by a worker as long as it has a vLLM, awake or asleep:
another worker on this GPU waits. The kernel frees the locks of a process that dies, in whatever
way, so nobody waits for the dead.
"""

import asyncio
import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from services.runtime.file_lock import try_lock

POLL_SECONDS = 0.05


class Handover:
    """One process's view of one GPU."""

    def __init__(self, folder: Path, gpu: str) -> None:
        """`folder`: one that learner and worker share; `gpu`: its UUID."""
        folder.mkdir(parents=True, exist_ok=True)
        self._use, self._wanted, self._sampler = (
            (folder / f"{gpu}.{name}.lock").open("a") for name in ("use", "wanted", "sampler")
        )

    def begin_to_train(self, gives_up: Callable[[], bool]) -> bool:
        """Take the GPU for the learner. Returns whether it has it: True once no vLLM is awake
        there, False where `gives_up` comes first."""
        for lock in (self._wanted, self._use):
            while not try_lock(lock):
                if gives_up():
                    self.leave()
                    return False
                time.sleep(POLL_SECONDS)
        return True

    async def begin_to_sample(self) -> None:
        """Take the GPU for a vLLM. Returns when the learner neither has it nor wants it, and no
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
        """Let the other side have the GPU."""
        for lock in (self._use, self._wanted):
            fcntl.flock(lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave, for good."""
        for lock in (self._use, self._wanted, self._sampler):
            lock.close()
