"""Decides which files of a data volume are served to hosts without it: datasets, models, weights,
checkpoints, payloads of groups. Other files (logs, keys, Redis' files) are private."""

import errno
import os
import re
from http import HTTPStatus
from io import BufferedReader
from pathlib import Path

from services.http.problems import Problem
from services.models import open_below

# A part never begins with a dot: neither `..` nor a file that is still being written.
_PART = r"(?!\.)[^/\\\x00]+"
SERVED = re.compile(
    rf"(datasets/{_PART}/{_PART}|runs/{_PART}/(model|weights|checkpoints|payloads)(/{_PART})+)"
)
# A FileNotFoundError of our own has no number.
NO_FILE = {
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO
}  # fmt: skip


def open_served(root: Path, path: str) -> BufferedReader:
    """Open the file at `path` below the data volume `root`. Raises Problem: 403 for a private file,
    404 for a missing one."""
    if not SERVED.fullmatch(path):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{path!r} is not served: only datasets/ and runs/RUN (model, weights, "
            "checkpoints, payloads) are",
        )
    top, *names = path.split("/")
    try:
        # Headrace makes no links below `datasets` or `runs`: a link there is foreign, and is not
        # followed.
        return os.fdopen(open_below(root / top, names), "rb")
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no file {path!r} on the data volume"
        ) from None
