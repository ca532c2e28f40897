"""Rows of a run's dataset, on this host. A dataset may grow while it is read."""

from services.contracts.rows.dataset import Row
from services.datasets.stored_rows import DatasetReader
from services.store import Store
from services.volume import Volume


class MissingDataset(ValueError):
    """The run's dataset does not exist (any more)."""


class Rows:
    """One dataset by row index."""

    def __init__(self, store: Store, volume: Volume, name: str) -> None:
        self._store = store
        self._volume = volume
        self._name = name
        self._reader: DatasetReader | None = None

    @property
    def count(self) -> int:
        """Rows known here; the dataset may have more by now."""
        return len(self._reader) if self._reader is not None else 0

    async def row(self, index: int) -> Row:
        """The row at `index`; looks for newer segments if it is beyond the known ones. Raises
        MissingDataset, IndexError, and as `Volume.fetch`."""
        if self._reader is None or index >= len(self._reader):
            record = await self._store.datasets.find(self._name)
            if record is None:
                raise MissingDataset(f"there is no dataset {self._name!r}")
            if self._reader is None:
                self._reader = DatasetReader(self._volume, record)
            else:
                self._reader.extend(record)
            await self._reader.fetch()
        return self._reader.row(index)
