"""A learner that stops at a named point while it makes a checkpoint or a version: the whole
process, by SIGKILL or SIGSTOP, or only the writing thread, until the file HOW exists.

`stopping_learner.py PLACE HOW`: runs `python -m learner.rank` unchanged. An audit hook of the
interpreter sees the next system call. Places, for the first checkpoint:

- `renamed?`: everything is fsynced, the rename is next
- `committed?`: it is renamed, the commit is next
- `retained?`: it is committed, deleting older ones is next

and for version 3:

- `published?`: it is fsynced, the rename is next
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from learner.rank import main

PLACE, HOW = sys.argv[1:]
seen: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Record the system calls that name a folder of checkpoints or version 3, and stop at the
    chosen one."""
    if not event.startswith(("os.", "open")) or not arguments:
        return
    path = str(arguments[1] if event == "os.rename" else arguments[0])
    name = os.path.basename(path)
    if event == "os.rename" and name.startswith("step-"):
        reached = "renamed?"
    elif event == "os.rename" and name.startswith("v000003-"):
        reached = "published?"
    elif "renamed?" in seen and event == "open" and name == "checkpoints":
        reached = "committed?"  # The folder is fsynced after the rename.
    elif "committed?" in seen and event in ("os.listdir", "os.scandir") and name == "checkpoints":
        reached = "retained?"
    else:
        return
    if reached not in seen:
        seen.append(reached)
        if reached == PLACE:
            stop()


def stop() -> None:
    """Stop in the way that HOW names."""
    if HOW in signal.Signals.__members__:
        # To this thread: another one may get to its signals only after this one has gone on.
        signal.pthread_kill(threading.get_ident(), signal.Signals[HOW])
    while not HOW.startswith("SIG") and not os.path.exists(HOW):
        time.sleep(0.02)


if __name__ == "__main__":
    del sys.argv[1:]
    sys.addaudithook(watch)
    sys.exit(main())
