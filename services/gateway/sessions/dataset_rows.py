"""Read rows of the datasets that agents lease. Each file is read and checked once, not at each
lease."""

from collections import OrderedDict

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import DatasetReader
from services.volume import Volume

KEPT_OPEN = 64
"""Datasets whose files stay open: those that were used last."""


class DatasetRows:
    """Keeps readers of datasets for the life of one gateway."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._readers: OrderedDict[str, DatasetReader] = OrderedDict()

    async def row(self, record: DatasetRecord, index: int) -> Row:
        """Return a row. Raises IndexError, FileNotFoundError and DamagedFile."""
        reader = self._readers.get(record.id)
        known = reader.record.segments if reader is not None else []
        # A dataset that was deleted and uploaded again may have other segments.
        if reader is None or record.segments[: len(known)] != known:
            reader, known = DatasetReader(self._volume, record), []
        if record.segments != known:
            await reader.fetch(record)
        self._readers[record.id] = reader
        self._readers.move_to_end(record.id)
        while len(self._readers) > KEPT_OPEN:
            self._readers.popitem(last=False)
        return reader.row(index)
