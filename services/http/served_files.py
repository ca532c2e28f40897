"""Which files of a data volume hosts without it may fetch: datasets, models, weights, checkpoints,
payloads of groups.
Other files (logs, keys, Redis' files) are not served."""

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
    """The file at `path` below the data volume `root`. Raises Problem: 403 for one that is not
    served, 404 for one that does not exist."""
    if not SERVED.fullmatch(path):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"{path!r} is not served: only datasets/ and runs/RUN (model, weights, "
            "checkpoints, payloads) are",
        )
    top, *names = path.split("/")
    try:
        # Below `datasets` or `runs` Headrace makes no links, so none is followed.
        return os.fdopen(open_below(root / top, names), "rb")
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is no file {path!r} on the data volume"
        ) from None
