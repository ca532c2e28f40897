"""Keeps the records of fine-tuning jobs on the data volume, below `openai/`.

`new_jobs/ID.json` is a job whose run is not queued yet. Once the run is queued, or cannot be made,
the record moves to `jobs/ID.json`. A gateway that finds a new job finishes it.
"""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pydantic import ValidationError

from services.gateway.openai_jobs.jobs import JOB, JobRecord
from services.runtime.file_lock import file_lock
from services.runtime.logs import get_logger
from services.volume import fsync, written_beside

log = get_logger(__name__)


class JobShelf:
    """Records of jobs. Its methods block, except `lock`: call them in a thread."""

    def __init__(self, root: Path) -> None:
        """`root`: the data volume."""
        self._jobs, self._new = root / "openai" / "jobs", root / "openai" / "new_jobs"

    def lock(self, id: str) -> AbstractAsyncContextManager[None]:
        """Return a lock that all gateways of a host share. Whoever finishes a job holds it."""
        return file_lock(self._new / f".{id}.lock")

    def begin(self, record: JobRecord) -> None:
        """Keep a new job, or its new fields."""
        _write(self._new / f"{record.id}.json", record)

    def settle(self, record: JobRecord) -> None:
        """Keep a job that has a run, or an error."""
        _write(self._jobs / f"{record.id}.json", record)
        self.forget(record.id)

    def forget(self, id: str) -> None:
        """Forget a new job."""
        (self._new / f"{id}.json").unlink(missing_ok=True)
        fsync(self._new)

    def new(self, id: str) -> JobRecord | None:
        """Return the new job with this id, if it exists."""
        return _read(self._new / f"{id}.json") if JOB.fullmatch(id) else None

    def get(self, id: str) -> JobRecord | None:
        """Return the job with this id, if it exists."""
        if not JOB.fullmatch(id):
            return None
        return _read(self._jobs / f"{id}.json") or self.new(id)

    def new_ids(self) -> list[str]:
        """Return the ids of new jobs."""
        return [path.stem for path in _records(self._new)]

    def all(self) -> list[JobRecord]:
        """Return all jobs, the newest first."""
        ids = dict.fromkeys(
            path.stem for place in (self._new, self._jobs) for path in _records(place)
        )
        records = [record for id in ids if (record := self.get(id)) is not None]
        return sorted(records, key=lambda record: (record.created, record.id), reverse=True)


def _records(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.json") if JOB.fullmatch(path.stem))


def _write(path: Path, record: JobRecord) -> None:
    with written_beside(path) as beside:
        beside.write_text(record.model_dump_json())


def _read(path: Path) -> JobRecord | None:
    """Read a record. A damaged record is logged, and counts as missing."""
    try:
        return JobRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.warning("a record is damaged", file=str(path), problem=str(error)[:300])
        return None
