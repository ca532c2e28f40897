"""File locks between the processes of a host. The kernel frees the lock of a process that dies."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.05


@asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """Hold the lock `path` during the block. Its last holder removes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            # The previous holder may have removed the file after it was opened here.
            if try_lock(file) and _is_at(file, path):
                try:
                    yield
                    return
                finally:
                    # The file may have been deleted meanwhile; then another process has the lock at
                    # this path.
                    if _is_at(file, path):
                        path.unlink(missing_ok=True)
        await asyncio.sleep(POLL_SECONDS)


def try_lock(file: IO[str] | int) -> bool:
    """Lock an open file for this process alone, without waiting. Returns whether this process has
    the lock, perhaps from before."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
