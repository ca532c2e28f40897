"""A process whose disk fails when it is to keep what was written: `fsync` gives EIO while the file
exists that HEADRACE_FAILING_DISK names.

`python -m tests.security.failing_disk MODULE ARGUMENTS`: `python -m MODULE ARGUMENTS` on that disk.
"""

import errno
import os
import runpy
import sys
from pathlib import Path

FAILS = "HEADRACE_FAILING_DISK"
fsync = os.fsync


def failing_fsync(descriptor: int) -> None:
    """os.fsync, or EIO while the file exists."""
    if Path(os.environ[FAILS]).exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(descriptor)


if __name__ == "__main__":
    os.fsync = failing_fsync  # type: ignore[assignment]
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
