"""GPUs of a worker's own: each worker of a machine takes some that no other has.

What is taken is a lock (flock) on a file for each device, in a folder that all workers share. The
kernel frees it when its owner dies, in whatever way, so there is nothing to clean up and nobody to
ask. Which number a worker has among its siblings plays no part.
"""

import fcntl
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from services.gpus import GPU, GPUSettings, listed_gpus, names_in, shown, visible_gpus
from services.logs import get_logger

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


def take_gpus(settings: GPUSettings) -> Taken:
    """As the settings say; nothing where they say nothing. Raises GPUsTaken, GPUsUnknown."""
    if settings.gpu_locks is None:
        return Taken()
    visible = visible_gpus(listed_gpus(), os.environ)
    return take(
        settings.gpu_locks, settings.gpus_per_worker, visible, names_in(settings.learner_gpus)
    )


def take(folder: Path, count: int, visible: Sequence[GPU], learners: Collection[str]) -> Taken:
    """`count` of the `visible` GPUs that nobody holds, in their order. Raises GPUsTaken, holding
    none.

    Those of the learner are left to it, unless there are no others: then they are shared.
    """
    free = [gpu for gpu in visible if not gpu.named_in(learners)]
    shared = not free and bool(visible)
    if shared:
        log.warning("this machine has no GPU but the learner's: they share its memory")
        free = list(visible)
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
            message = _refusal(folder, count, visible, free, taken)
            for file in files:
                file.close()
            raise GPUsTaken(message)
    log.info("GPUs taken", gpus=[gpu.index for gpu in taken])
    return Taken(taken, files, shared)


def _locked(path: Path) -> IO[str] | None:
    """The file, locked, with the owner's name in it; None where another process holds it."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    file.write(f"{socket.gethostname()}, process {os.getpid()}")
    file.flush()
    return file


def _refusal(
    folder: Path, count: int, visible: Sequence[GPU], free: Sequence[GPU], taken: Sequence[GPU]
) -> str:
    said = []
    for gpu in visible:
        if gpu in taken:
            said.append(f"{gpu.index} is free")
        elif gpu in free:
            said.append(f"{gpu.index} is held by {(folder / f'{gpu.uuid}.lock').read_text()}")
        else:
            said.append(f"{gpu.index} is the learner's (HEADRACE_LEARNER_GPUS)")
    return (
        f"{count} free GPU{'s are' if count > 1 else ' is'} needed, and this machine has "
        f"{len(taken)}: {'; '.join(said) or 'it shows none to this process'}. Start fewer rollout "
        "workers here (`--scale rollout=…`), or others on another machine"
    )
