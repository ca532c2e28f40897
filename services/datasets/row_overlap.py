"""Count the rows of one dataset that are also in other datasets."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from services.contracts.records import DatasetRecord
from services.datasets.segments import Segment
from services.volume import Volume

COMPARED_BYTES = 64 * 2**20
"""The largest dataset whose rows are compared: about a second of reading, 8 MB of hashes."""


def shared_rows(volume: Volume, held: DatasetRecord, trained: DatasetRecord) -> int:
    """Count the rows of `held` whose prompt and answer are also in `trained`. If either dataset is
    larger than COMPARED_BYTES, only rows in segments that both datasets have are counted."""
    if max(_bytes(held), _bytes(trained)) > COMPARED_BYTES:
        common = {segment.xxh3 for segment in trained.segments}
        return sum(segment.rows for segment in held.segments if segment.xxh3 in common)
    return int(np.isin(_hashes(volume, held), _hashes(volume, trained)).sum())


def _bytes(record: DatasetRecord) -> int:
    return sum(segment.bytes for segment in record.segments)


def _hashes(volume: Volume, record: DatasetRecord) -> NDArray[np.uint64]:
    segments: Iterable[Segment] = (Segment(volume.path(entry.file)) for entry in record.segments)
    return np.concatenate([np.zeros(0, np.uint64), *(segment.hashes() for segment in segments)])
