"""Opens files so that symbolic links cannot redirect them.

A path is resolved once. The resolved path is opened component by component without following links:
a link that appears in between causes an error.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path


def open_below(folder: Path, names: Sequence[str]) -> int:
    """Open the regular file at `names` below `folder` for reading, and return its descriptor.
    `folder` itself may be a link. Raises OSError, also for a link or a special file on the way."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
            at, above = os.open(name, flags, dir_fd=at), at
            os.close(above)
        # Without O_NONBLOCK, opening a named pipe would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(names[-1], flags, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(f"{Path(*names)} is no file")
    return file


def open_inside(root: Path, path: Path) -> int:
    """Open the regular file that `path` leads to for reading, and return its descriptor. The file
    must be inside `root`. Raises OSError, and PermissionError if a link leaves `root`."""
    real, real_root = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if not real.is_relative_to(real_root):
        raise PermissionError(f"{path} is a link that leaves {root}")
    return open_below(real_root, real.relative_to(real_root).parts)
