"""A learner that stops at a named place of a checkpoint's or a version's way: all of it, by SIGKILL
or SIGSTOP, or only the thread that makes that, until the file HOW exists.

`stopping_learner.py PLACE HOW`: runs `python -m learner.rank` unchanged; an audit hook of the
interpreter sees the system call that comes next. Places, for the first checkpoint that is made:

- `renamed?`: everything is fsynced, the rename is next
- `committed?`: it is renamed, the commit is next
- `retained?`: it is committed, deleting older ones is next

and for version 3:

- `published?`: it is fsynced, the rename is next
"""

import os
import signal
import sys
import time
from typing import Any

from learner.rank import main

PLACE, HOW = sys.argv[1:]
seen: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the system calls that name a folder of checkpoints or version 3, and stop at the chosen
    one."""
    if not event.startswith(("os.", "open")) or not arguments:
        return
    path = str(arguments[1] if event == "os.rename" else arguments[0])
    name = os.path.basename(path)
    if event == "os.rename" and name.startswith("step-"):
        reached = "renamed?"
    elif event == "os.rename" and name.startswith("v000003-"):
        reached = "published?"
    elif "renamed?" in seen and event == "open" and name == "checkpoints":
        reached = "committed?"  # the folder is fsynced after the rename
    elif "committed?" in seen and event in ("os.listdir", "os.scandir") and name == "checkpoints":
        reached = "retained?"
    else:
        return
    if reached not in seen:
        seen.append(reached)
        if reached == PLACE:
            stop()


def stop() -> None:
    """As HOW says."""
    if HOW in signal.Signals.__members__:
        os.kill(os.getpid(), signal.Signals[HOW])
    while not HOW.startswith("SIG") and not os.path.exists(HOW):
        time.sleep(0.02)


if __name__ == "__main__":
    del sys.argv[1:]
    sys.addaudithook(watch)
    sys.exit(main())
