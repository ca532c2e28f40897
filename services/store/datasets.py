"""Datasets by id, with a second hash from name to id."""

import secrets

from services.contracts.records import DatasetRecord, DatasetSegment, RunState
from services.store.keys import DATASET_NAMES, DATASETS, RUNS, run_key
from services.store.scripts import Noun


class Datasets(Noun):
    """Records only: rows lie on the data volume."""

    async def add(self, record: DatasetRecord) -> DatasetRecord:
        """Register a dataset. Returns the one that holds the name: an older one stays as it is."""
        given = [record.id, record.name, record.model_dump_json()]
        held = await self._scripts.run("add_dataset", [DATASETS, DATASET_NAMES], given)
        return DatasetRecord.model_validate_json(held)

    async def find(self, name: str) -> DatasetRecord | None:
        """A dataset by id or by name."""
        text = await self._redis.hget(DATASETS, name)
        if text is None:
            id = await self._redis.hget(DATASET_NAMES, name)
            text = await self._redis.hget(DATASETS, id) if id else None
        return DatasetRecord.model_validate_json(text) if text else None

    async def list(self) -> list[DatasetRecord]:
        """All datasets."""
        found = await self._redis.hgetall(DATASETS)
        return [DatasetRecord.model_validate_json(text) for text in found.values()]

    async def delete(self, id: str) -> None:
        """Forget a dataset."""
        text = await self._redis.hget(DATASETS, id)
        if text is not None:
            name = DatasetRecord.model_validate_json(text).name
            await self._scripts.run("delete_dataset", [DATASETS, DATASET_NAMES], [id, name])

    async def append(self, id: str, segment: DatasetSegment) -> DatasetRecord:
        """Grow a dataset by a durable segment; runs on it use the new rows in their next epoch.
        Raises KeyError where there is no such dataset."""
        while True:
            text = await self._redis.hget(DATASETS, id)
            if text is None:
                raise KeyError(id)
            old = DatasetRecord.model_validate_json(text)
            segments = [*old.segments, segment]
            grown = old.model_copy(update={"rows": old.rows + segment.rows, "segments": segments})
            given = [id, text, grown.model_dump_json()]
            keys = [DATASETS, f"{DATASETS}:{secrets.token_hex(8)}"]
            if await self._scripts.run("compare_set", keys, given):
                break
        await self._grow_runs(grown)
        return grown

    async def _grow_runs(self, record: DatasetRecord) -> None:
        for run in await self._redis.zrange(RUNS, 0, -1):
            name = run.decode()
            state, dataset = await self._redis.hmget(run_key(name, "run"), ["state", "dataset"])
            live = state is not None and not RunState(state.decode()).final
            if live and dataset is not None and dataset.decode() in (record.id, record.name):
                await self.grow_run(name, record)

    async def grow_run(self, run: str, record: DatasetRecord) -> None:
        """Let a run use all present rows from its next epoch on."""
        await self._scripts.run("grow", [run_key(run, "order")], [record.rows])
