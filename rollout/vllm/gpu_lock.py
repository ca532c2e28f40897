"""Locks on GPUs: each worker of a machine takes GPUs that no other worker has, and where workers
share a GPU, their vLLMs start one after another.

A lock is a file for each device (flock) in a folder that all workers share. The kernel frees it
when its owner dies, in whatever way.
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
    """There are not as many free GPUs as wanted. The message says who has them."""


@dataclass(frozen=True)
class Taken:
    """GPUs that this process holds until it ends, or closes the files."""

    gpus: Sequence[GPU] = ()
    files: Sequence[IO[str]] = field(default=(), repr=False)
    shared: bool = False
    """Whether the learner has them, too."""

    @property
    def environment(self) -> dict[str, str]:
        """What shows them alone to processes that are started now."""
        return shown(self.gpus)


@asynccontextmanager
async def start_lock(settings: GPUSettings) -> AsyncIterator[None]:
    """Hold the block until no other worker starts a vLLM on the GPUs that this process sees.

    vLLM measures the free memory of its GPU while it starts; another start on that GPU would change
    the result. The learner and reward models take no lock, nor does a worker whose GPUs the driver
    does not list."""
    try:
        visible = visible_gpus(listed_gpus(), os.environ)
    except GPUsUnknown as error:
        log.warning("vLLM starts without a lock on its GPU", reason=str(error))
        visible = []
    folder = settings.gpu_locks or settings.data / "gpu-locks"
    async with AsyncExitStack() as locks:
        # All workers in the same order, so that none waits for one that waits for it.
        for uuid in sorted(gpu.uuid for gpu in visible):
            await locks.enter_async_context(file_lock(folder / f"{uuid}.start.lock"))
        yield


def take_gpus(settings: GPUSettings) -> Taken:
    """As the settings say; nothing where they say nothing. Raises GPUsTaken, GPUsUnknown."""
    if settings.gpu_locks is None:
        return Taken()
    visible = visible_gpus(listed_gpus(), os.environ)
    learners, rewards = names_in(settings.learner_gpus), names_in(settings.reward_gpus)
    return take(settings.gpu_locks, settings.gpus_per_worker, visible, learners, rewards)


def take(
    folder: Path,
    count: int,
    visible: Sequence[GPU],
    learners: Collection[str],
    rewards: Collection[str] = (),
) -> Taken:
    """`count` of the `visible` GPUs that nobody holds, in their order. Raises GPUsTaken, holding
    none.

    GPUs of reward models are left alone, and those of the learner, too, unless there are no others:
    then workers share these.
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
    # One at a time: two workers that each took a half of what is there would both have to give up.
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
    return Taken(taken, files, shared)


def _locked(path: Path) -> IO[str] | None:
    """The file, locked, with the owner's name in it; None where another process holds it."""
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
