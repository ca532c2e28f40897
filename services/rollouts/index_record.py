"""The record of one answer in the index of a run's rollouts: 48 bytes."""

import zlib

import numpy as np
import numpy.typing as npt

from services.contracts.scores import ScoreStatus

RECORD = np.dtype(
    [
        ("group", "<i8"),
        ("row", "<i8"),
        ("reward", "<f8"),  # NaN: no reward
        ("step", "<u4"),
        ("place", "<u4"),  # row of the part
        ("tokens", "<u4"),
        ("dataset", "<u4"),  # `dataset_key`
        ("sample", "<u2"),
        ("rank", "<u2"),
        ("status", "u1"),  # place in ScoreStatus, or OTHER
        ("truncated", "?"),
        ("trained", "?"),
        ("reserved", "u1"),
    ]
)
STATUSES = list(ScoreStatus)
OTHER = 255
Records = npt.NDArray[np.void]


def status_key(status: str) -> int:
    """Return the number of a status in the index."""
    return STATUSES.index(ScoreStatus(status)) if status in [*ScoreStatus] else OTHER


def dataset_key(name: str) -> int:
    """Return the number of a dataset in the index."""
    return zlib.crc32(name.encode())
