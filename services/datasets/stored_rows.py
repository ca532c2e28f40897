"""Read rows of a dataset by index, across its segments, without loading all of it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.contracts.weights import WeightFile
from services.datasets.segments import Segment
from services.volume import Volume


class DatasetReader:
    """Reads rows of the dataset `record` by index. A dataset only grows: `extend` takes a newer
    record.

    A host without the data volume must `fetch` the segments before it reads rows.
    """

    def __init__(self, volume: Volume, record: DatasetRecord) -> None:
        self._volume = volume
        self._segments: list[Segment | None] = []
        self.extend(record)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def extend(self, record: DatasetRecord) -> None:
        """Add the segments of a newer `record`."""
        self.record = record
        self._ends = list(accumulate(segment.rows for segment in record.segments))
        self._segments += [None] * (len(record.segments) - len(self._segments))

    async def fetch(self, newer: DatasetRecord | None = None) -> None:
        """Fetch every missing segment, then extend this reader to the `newer` record if given.

        The order ensures that every known row has its file here. Raises as `Volume.fetch` does.
        """
        record = newer or self.record
        for position, segment in enumerate(record.segments):
            if position >= len(self._segments) or self._segments[position] is None:
                await self._volume.fetch(WeightFile(segment.file, segment.bytes, segment.xxh3))
        self.extend(record)

    def rows(self, indices: Iterable[int]) -> list[Row]:
        """Return the rows at `indices`, in their order.

        Raises IndexError beyond the end, FileNotFoundError for a segment that was not fetched, and
        DatasetError for a segment of another schema version.
        """
        return [self.row(index) for index in indices]

    def row(self, index: int) -> Row:
        """Return the row at `index`. Raises as `rows` does."""
        if not 0 <= index < len(self):
            raise IndexError(
                f"dataset {self.record.name} has {len(self)} rows; there is no row {index}"
            )
        position = bisect_right(self._ends, index)
        start = self._ends[position - 1] if position else 0
        return self._segment(position).row(index - start)

    def matching(self, columns: Sequence[str], pattern: str) -> NDArray[np.int64]:
        """Return the indices of all rows that match the regular expression `pattern`.

        A row matches if the JSON of any of `columns` does. Raises as `rows` does.
        """
        starts = (0, *self._ends)
        indices = [
            start + self._segment(position).matching(columns, pattern)
            for position, start in enumerate(starts[:-1])
        ]
        return np.concatenate([np.zeros(0, np.int64), *indices])

    def _segment(self, position: int) -> Segment:
        segment = self._segments[position]
        if segment is None:
            segment = Segment(self._volume.path(self.record.segments[position].file))
            self._segments[position] = segment
        return segment
