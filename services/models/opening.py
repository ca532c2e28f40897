"""Opening files so that no symbolic link decides which file that is.

A path is resolved once. What is opened is the resolved path, component by component without
following links, so a link that appears in between ends in an error and not in another file.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path


def open_below(folder: Path, names: Sequence[str]) -> int:
    """A descriptor, for reading, of the regular file at `names` below `folder`. `folder` itself may
    be a link. Raises OSError: also for a link or a special file on the way."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
            at, above = os.open(name, flags, dir_fd=at), at
            os.close(above)
        # Without O_NONBLOCK a named pipe would be waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(names[-1], flags, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(f"{Path(*names)} is no file")
    return file


def open_inside(root: Path, path: Path) -> int:
    """A descriptor, for reading, of the regular file that `path` leads to, which must lie in
    `root`. Raises OSError, PermissionError where a link leaves `root`."""
    real, real_root = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if not real.is_relative_to(real_root):
        raise PermissionError(f"{path} is a link that leaves {root}")
    return open_below(real_root, real.relative_to(real_root).parts)
