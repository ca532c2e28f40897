"""Counts the rows of datasets in the background, and keeps the counts in each dataset's folder.

Whoever asks for the same rows again joins the count that is running, or gets what an earlier one
kept. Only one dataset is counted at a time.
"""

import asyncio
from pathlib import Path

import anyio.to_thread
from pydantic import BaseModel, ValidationError

from services.contracts.dataset_findings import RowFindings
from services.contracts.records import DatasetRecord
from services.datasets.row_findings import SMALL_BYTES, count_rows
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.volume import Volume, written_beside

log = get_logger(__name__)

FILE = "findings.json"


class KeptFindings(BaseModel):
    """The counts of a dataset, with the checksums of the rows that were counted."""

    segments: list[str]
    findings: RowFindings


class RowCounting:
    """Counts rows for one gateway."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._turn = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[RowFindings]] = {}

    def begin(self, record: DatasetRecord) -> None:
        """Count a large dataset now, so that whoever asks finds the counts."""
        if sum(segment.bytes for segment in record.segments) > SMALL_BYTES:
            self._task(record)

    async def wait(self, record: DatasetRecord, seconds: float) -> RowFindings | None:
        """Return the counts, or None if they take longer than this. Raises DatasetError
        and OSError."""
        task = self._task(record)
        done, _ = await asyncio.wait([task], timeout=seconds)
        return task.result() if done else None

    async def close(self) -> None:
        """End all counts."""
        await end(self._tasks.values())

    def _task(self, record: DatasetRecord) -> "asyncio.Task[RowFindings]":
        key = " ".join([record.id, *_checksums(record)])
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._findings(record))
            self._tasks[key].add_done_callback(lambda _: self._forget(key))
        return self._tasks[key]

    def _forget(self, key: str) -> None:
        task = self._tasks.pop(key)
        # Whoever waits gets the error as well. Nobody may wait.
        if not task.cancelled() and (error := task.exception()):
            log.warning("rows not counted", reason=str(error))

    async def _findings(self, record: DatasetRecord) -> RowFindings:
        path = self._volume.path(f"datasets/{record.id}/{FILE}")
        kept = await anyio.to_thread.run_sync(_kept, path)
        if kept is not None and kept.segments == _checksums(record):
            return kept.findings
        async with self._turn:
            paths = [self._volume.path(segment.file) for segment in record.segments]
            findings = await anyio.to_thread.run_sync(count_rows, paths)
        kept = KeptFindings(segments=_checksums(record), findings=findings)
        await anyio.to_thread.run_sync(_keep, path, kept)
        return findings


def _checksums(record: DatasetRecord) -> list[str]:
    return [segment.xxh3 for segment in record.segments]


def _kept(path: Path) -> KeptFindings | None:
    """Return what an earlier count kept. A damaged file counts as missing."""
    try:
        return KeptFindings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(path: Path, kept: KeptFindings) -> None:
    """Write the counts. If that fails, or if the dataset was deleted meanwhile, the next question
    has the rows counted again."""
    if not path.parent.exists():
        return
    try:
        with written_beside(path) as beside:
            beside.write_text(kept.model_dump_json())
    except OSError as error:
        log.warning("counts of rows were not kept", reason=str(error))
