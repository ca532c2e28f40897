"""A dataset that is deleted while it is uploaded, or grows: it is there whole, or gone."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response, UploadFile

from services.contracts.records import DatasetRecord, DatasetSegment
from services.datasets import append_rows
from services.gateway.idempotency import RequestTry
from services.gateway.routes.datasets import datasets as routes
from services.gateway.routes.datasets import prompts
from services.gateway.submission import dataset_creation
from services.http import Problem
from services.recovery.record_copies import keep_copy, kept_datasets
from services.volume import Volume

LINES = b'{"prompt": "1+1", "answer": "2"}\n'


class Datasets:
    """Dataset records in memory instead of Redis."""

    def __init__(self) -> None:
        self.records: dict[str, DatasetRecord] = {}
        self.deleted: Any = None
        """Called between the deletion of a record and of its files."""

    async def add(self, record: DatasetRecord) -> DatasetRecord:
        return self.records.setdefault(record.id, record)

    async def find(self, id: str) -> DatasetRecord | None:
        return self.records.get(id)

    async def append(
        self, id: str, segment: DatasetSegment, change: str
    ) -> tuple[DatasetRecord, int]:
        old = self.records[id]
        changed = {"rows": old.rows + segment.rows, "segments": [*old.segments, segment]}
        self.records[id] = old.model_copy(update=changed)
        return self.records[id], self.records[id].rows

    async def delete(self, id: str) -> None:
        del self.records[id]
        if self.deleted is not None:
            await self.deleted()


@pytest.fixture
def other(deps: Any) -> Any:
    """Another gateway on the same volume and Redis."""
    return SimpleNamespace(**vars(deps) | {"volume": Volume(deps.volume.root)})


@pytest.fixture
def deps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def unused(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(routes, "users_of", unused)
    return SimpleNamespace(
        volume=Volume(tmp_path),
        store=SimpleNamespace(datasets=Datasets()),
        settings=SimpleNamespace(upload_limit=1 << 20),
        counting=SimpleNamespace(begin=lambda _: None),
    )


async def upload(deps: Any) -> DatasetRecord:
    file = UploadFile(io.BytesIO(LINES), filename="rows.jsonl")
    client: Any = SimpleNamespace(receive=asyncio.Event().wait)
    added = await routes.create(deps, client, Response(), [file], name="rows")
    assert isinstance(added, DatasetRecord)
    return added


async def began(task: asyncio.Task[Any]) -> None:
    """Let it come as far as it comes."""
    await asyncio.wait([task], timeout=1)


async def test_a_dataset_that_is_uploaded_while_another_gateway_deletes_it_has_its_file(
    deps: Any, other: Any
) -> None:
    """The deletion removed the file of the new one, and a run on it could not read a row."""
    record = await upload(deps)
    uploads: list[asyncio.Task[Any]] = []

    async def again() -> None:
        uploads.append(asyncio.create_task(upload(other)))
        await began(uploads[0])

    deps.store.datasets.deleted = again
    await routes.delete(deps, record)
    await uploads[0]
    (there,) = deps.store.datasets.records.values()
    assert deps.volume.path(there.segments[0].file).exists()
    assert [record.id for record in kept_datasets(deps.volume.root)] == [there.id]


@pytest.mark.parametrize("kind", ["upload", "prompts"])
async def test_a_dataset_deleted_before_its_copy_is_written_leaves_no_copy(
    kind: str, deps: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway refuses to start if a copy exists that Redis does not know."""
    record = await upload(deps) if kind == "prompts" else None
    deletions: list[asyncio.Task[Any]] = []

    async def late(keep: Any, root: Path, kept: DatasetRecord) -> None:
        deletions.append(asyncio.create_task(routes.delete(other, kept)))
        await began(deletions[0])
        await keep_copy(keep, root, kept)

    for module in (dataset_creation, prompts):
        monkeypatch.setattr(module, "keep_copy", late)
    if record is None:
        await upload(deps)
    else:
        row = prompts.Prompt(prompt="2+2", answer="4")
        await prompts.add(
            deps, prompts.PromptAddition(dataset=record.id, prompts=[row]), RequestTry("s")
        )
    await deletions[0]
    assert not deps.store.datasets.records
    assert not list(kept_datasets(deps.volume.root))


async def test_rows_of_a_dataset_that_was_deleted_and_uploaded_meanwhile_are_refused(
    deps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await upload(deps)

    def slowly(root: Path, id: str, rows: Any) -> DatasetSegment:
        segment = append_rows(root, id, rows)
        deps.volume.path(segment.file).unlink()
        return segment

    monkeypatch.setattr(prompts, "append_rows", slowly)
    row = prompts.Prompt(prompt="2+2", answer="4")
    with pytest.raises(Problem, match="was deleted meanwhile"):
        await prompts.add(
            deps, prompts.PromptAddition(dataset=record.id, prompts=[row]), RequestTry("s")
        )
    assert deps.store.datasets.records[record.id].rows == 1
