"""Datasets by id, with a second hash from name to id."""

import secrets

from services.contracts.records import DatasetRecord, DatasetSegment, RunState
from services.store.errors import Unreadable
from services.store.keys import DATASET_NAMES, DATASETS, RUNS, run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, read_dataset, reading, report

CHANGE_MS = 24 * 3600 * 1000
"""How long a change may be repeated."""


class Datasets(StorePart):
    """Calls about datasets. Redis has only their records: the rows are on the data volume."""

    async def add(self, record: DatasetRecord) -> DatasetRecord:
        """Register a dataset. Returns the dataset that has the name: an older one stays as it
        is."""
        text = record.model_dump_json()
        present = await self._scripts.run("add_dataset", [record.id, record.name, text])
        return record if present == text.encode() else await self._holder(record.name) or record

    async def _holder(self, name: str) -> DatasetRecord | None:
        id = await self._redis.hget(DATASET_NAMES, name)
        text = await self._redis.hget(DATASETS, id) if id else None
        return None if text is None else read_dataset(as_text(id), text)

    async def put(self, record: DatasetRecord) -> None:
        """Write a record that Redis has lost, or has in an older state."""
        await self._redis.hset(DATASETS, record.id, record.model_dump_json())
        await self._redis.hsetnx(DATASET_NAMES, record.name, record.id)

    async def find(self, name: str) -> DatasetRecord | None:
        """Return a dataset by its id or its name, or None."""
        text = await self._redis.hget(DATASETS, name)
        return await self._holder(name) if text is None else read_dataset(name, text)

    async def list(self) -> list[DatasetRecord]:
        """Return all datasets. `damage` marks the datasets whose record cannot be read."""
        records = await self._redis.hgetall(DATASETS)
        return [read_dataset(as_text(id), text) for id, text in records.items()]

    async def delete(self, id: str) -> None:
        text = await self._redis.hget(DATASETS, id)
        if text is not None:
            name = read_dataset(id, text).name
            await self._scripts.run("delete_dataset", [id, name])

    async def append(
        self, id: str, segment: DatasetSegment, change: str | None = None
    ) -> tuple[DatasetRecord, int]:
        """Append a durable segment to a dataset: for 24 hours once for each `change`. Its runs use
        the new rows from their next epoch on. Return the record, and the rows that it had after the
        change. Raises KeyError for an unknown dataset, and Unreadable if its record is damaged."""
        change = change or secrets.token_hex(8)
        while True:
            text = await self._redis.hget(DATASETS, id)
            if text is None:
                raise KeyError(id)
            with reading(f"the record of dataset {id}"):
                old = DatasetRecord.model_validate_json(text)
            segments = [*old.segments, segment]
            grown = old.model_copy(update={"rows": old.rows + segment.rows, "segments": segments})
            arguments = [id, text, grown.model_dump_json(), grown.rows, CHANGE_MS]
            if rows := int(await self._scripts.run("change_dataset", arguments, change=change)):
                break
        record = grown if rows == grown.rows else old
        await self._grow_runs(record)
        return record, rows

    async def _grow_runs(self, record: DatasetRecord) -> None:
        for run in await self._redis.zrange(RUNS, 0, -1):
            name = as_text(run)
            try:
                with reading(f"run {name}"):
                    await self._grow_user(name, record)
            except Unreadable as error:
                report(f"run {name}", str(error))

    async def _grow_user(self, run: str, record: DatasetRecord) -> None:
        state, dataset = await self._redis.hmget(run_key(run, "run"), ["state", "dataset"])
        live = state is not None and not RunState(state.decode()).final
        if live and dataset is not None and dataset.decode() in (record.id, record.name):
            await self.grow_run(run, record)

    async def grow_run(self, run: str, record: DatasetRecord) -> None:
        """Let a run use all present rows from its next epoch on."""
        await self._scripts.run("grow_run", [record.rows], run=run)
