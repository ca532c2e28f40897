"""Locks on GPUs. Each worker of a machine takes GPUs that no other worker has. If workers share a
GPU, their vLLMs start one after another.

A lock is a file for each device (flock) in a folder that all workers share. The kernel releases it
when its owner dies.
"""

import fcntl
import os
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from services.runtime.file_lock import file_lock, try_lock
from services.runtime.gpus import (
    GPU,
    GPUSettings,
    GPUsUnknown,
    listed_gpus,
    names_in,
    shown,
    visible_gpus,
)
from services.runtime.logs import get_logger

log = get_logger(__name__)


class GPUsTaken(RuntimeError):
    """Too few GPUs are free. The message names their holders."""


@dataclass(frozen=True)
class TakenGPUs:
    """GPUs that this process holds until it ends, or closes the files."""

    gpus: Sequence[GPU] = ()
    files: Sequence[IO[str]] = field(default=(), repr=False)
    shared: bool = False
    """Whether the learner has the same GPUs."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that show only these GPUs to new processes."""
        return shown(self.gpus)


@asynccontextmanager
async def start_lock(settings: GPUSettings) -> AsyncIterator[None]:
    """Hold the block until no other worker starts a vLLM on the GPUs that this process sees.

    vLLM measures its GPU's free memory while it starts, and another start would change the result.
    The learner and reward models take no lock. A worker whose driver lists no GPU starts without a
    lock.
    """
    try:
        visible = visible_gpus(listed_gpus(), os.environ)
    except GPUsUnknown as error:
        log.warning("vLLM starts without a lock on its GPU", reason=str(error))
        visible = []
    folder = settings.gpu_locks or settings.data / "gpu-locks"
    async with AsyncExitStack() as locks:
        # All workers lock in the same order, which prevents a deadlock.
        for uuid in sorted(gpu.uuid for gpu in visible):
            await locks.enter_async_context(file_lock(folder / f"{uuid}.start.lock"))
        yield


def take_gpus(settings: GPUSettings) -> TakenGPUs:
    """Take GPUs by the settings; none if the settings name no folder of locks. Raises GPUsTaken,
    GPUsUnknown."""
    if settings.gpu_locks is None:
        return TakenGPUs()
    visible = visible_gpus(listed_gpus(), os.environ)
    learners, rewards = names_in(settings.learner_gpus), names_in(settings.reward_gpus)
    return take(settings.gpu_locks, settings.gpus_per_worker, visible, learners, rewards)


def take(
    folder: Path,
    count: int,
    visible: Sequence[GPU],
    learners: Collection[str],
    rewards: Collection[str] = (),
) -> TakenGPUs:
    """Take the first `count` of the `visible` GPUs that no process holds. Raises GPUsTaken, and
    then holds none.

    GPUs of reward models are never taken. GPUs of the learner are taken only if there are no
    others: then workers share them.
    """
    usable = [gpu for gpu in visible if not gpu.named_in(rewards)]
    free = [gpu for gpu in usable if not gpu.named_in(learners)]
    shared = not free and bool(usable)
    if shared:
        log.warning("this machine has no GPU but the learner's: they share its memory")
        free = usable
    folder.mkdir(parents=True, exist_ok=True)
    taken: list[GPU] = []
    files: list[IO[str]] = []
    # Only one worker at a time: two that each took half of the free GPUs would both have to give
    # up.
    with (folder / "taking.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for gpu in free:
            if len(taken) < count and (file := _locked(folder / f"{gpu.uuid}.lock")):
                taken.append(gpu)
                files.append(file)
        if len(taken) < count:
            message = _refusal(folder, count, visible, free, taken, rewards)
            for file in files:
                file.close()
            raise GPUsTaken(message)
    log.info("GPUs taken", gpus=[gpu.index for gpu in taken])
    return TakenGPUs(taken, files, shared)


def _locked(path: Path) -> IO[str] | None:
    """Lock the file, and write the owner's name into it. Return None if another process holds
    it."""
    file = path.open("a+")
    if not try_lock(file):
        file.close()
        return None
    file.truncate(0)
    file.write(f"{socket.gethostname()}, process {os.getpid()}")
    file.flush()
    return file


def _refusal(
    folder: Path,
    count: int,
    visible: Sequence[GPU],
    free: Sequence[GPU],
    taken: Sequence[GPU],
    rewards: Collection[str],
) -> str:
    owners = []
    for gpu in visible:
        if gpu in taken:
            owners.append(f"{gpu.index} is free")
        elif gpu in free:
            owners.append(f"{gpu.index} is held by {(folder / f'{gpu.uuid}.lock').read_text()}")
        elif gpu.named_in(rewards):
            owners.append(f"{gpu.index} is for reward models (HEADRACE_REWARD_GPUS)")
        else:
            owners.append(f"{gpu.index} is the learner's (HEADRACE_LEARNER_GPUS)")
    where = "; ".join(owners) or "it shows none to this process"
    return (
        f"{count} free GPU{'s are' if count > 1 else ' is'} needed, and this machine has "
        f"{len(taken)}: {where}. Start fewer rollout "
        "workers here (`--scale rollout=…`), or others on another machine"
    )
