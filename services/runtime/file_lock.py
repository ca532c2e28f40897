"""A file lock that the processes of a host share. The kernel frees it when its holder dies."""

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
    """Hold the lock `path` for the length of the block. Its last holder removes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            if _is_held(file, path):
                try:
                    yield
                    return
                finally:
                    # Somebody may have deleted it meanwhile; then another's lock is there.
                    if _is_at(file, path):
                        path.unlink(missing_ok=True)
        await asyncio.sleep(POLL_SECONDS)


def _is_held(file: IO[str], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The holder before may have removed the file after it was opened here.
    return _is_at(file, path)


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
