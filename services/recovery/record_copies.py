"""Copies of Redis' records on the data volume, written after Redis has acknowledged the records.

`runs/RUN/record.json` and `datasets/ID/record.json` are records as they were submitted.
`runs/RUN/ledger.jsonl` has a line for each commit: the step, the checkpoint, and the rows that the
ledger has got since the commit before.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import msgspec
from pydantic import BaseModel, ValidationError

from services.contracts.records import DatasetRecord, RunRecord
from services.runtime.logs import get_logger
from services.volume import written_beside

log = get_logger(__name__)

RECORD = "record.json"
LEDGER = "ledger.jsonl"
LATE = 4
"""Last lines of the ledger's copy that are searched for the newest commit."""

R = TypeVar("R", bound=BaseModel)
K = TypeVar("K")


class Commit(msgspec.Struct, frozen=True):
    """One line of `ledger.jsonl`."""

    time: float
    """Unix seconds, by the learner's clock."""
    step: int
    checkpoint: str
    """Relative to the data volume."""
    rows: list[tuple[str, dict[str, str]]]
    """(entry id, fields) of the ledger's rows."""


async def keep_copy(keep: Callable[[Path, K], None], data: Path, record: K | None) -> None:
    """Write a copy with `keep`. A disk error is only logged: the record in Redis is valid, but its
    loss would not be noticed."""
    if record is None:
        return
    try:
        await anyio.to_thread.run_sync(keep, data, record)
    except OSError as error:
        log.warning("a record has no copy on the data volume", reason=str(error))


def keep_run(data: Path, record: RunRecord) -> None:
    """Write the copy of a run that Redis has. Raises OSError."""
    _keep(data / "runs" / record.id / RECORD, record)


def keep_dataset(data: Path, record: DatasetRecord) -> None:
    """Write the copy of a dataset that Redis has. Raises OSError."""
    _keep(data / "datasets" / record.id / RECORD, record)


def forget_run(data: Path, id: str) -> None:
    """Delete the copy of a run that Redis does not know."""
    (data / "runs" / id / RECORD).unlink(missing_ok=True)


def forget_dataset(data: Path, id: str) -> None:
    """Delete the copy, before Redis deletes the record: otherwise the record would look lost."""
    (data / "datasets" / id / RECORD).unlink(missing_ok=True)


def kept_runs(data: Path) -> Iterator[RunRecord]:
    return _kept(data / "runs", RunRecord)


def kept_datasets(data: Path) -> Iterator[DatasetRecord]:
    return _kept(data / "datasets", DatasetRecord)


def commits(data: Path, run: str) -> list[Commit]:
    """Return the commits of a run, by step. Unreadable lines are left out (a power cut may tear the
    last one), and so are repeated lines."""
    commits_by_step: dict[int, Commit] = {}
    for commit in _decoded(_lines(data, run)):
        commits_by_step.setdefault(commit.step, commit)
    return [commits_by_step[step] for step in sorted(commits_by_step)]


def newest_commit(data: Path, run: str) -> Commit | None:
    """Return the commit of the highest step, searched from the end of the file: a learner that
    slept while another took its place may have written a commit late."""
    return max(_decoded(_lines(data, run)[-LATE:]), key=lambda commit: commit.step, default=None)


def cut_commits(data: Path, run: str, step: int) -> None:
    """Delete the commits of later steps. Raises OSError."""
    kept = [commit for commit in commits(data, run) if commit.step <= step]
    with written_beside(data / "runs" / run / LEDGER) as beside:
        beside.write_bytes(b"".join(msgspec.json.encode(commit) + b"\n" for commit in kept))


def _lines(data: Path, run: str) -> list[bytes]:
    """Return the lines of a run's ledger. Anything but a file counts as missing."""
    path = data / "runs" / run / LEDGER
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except (IsADirectoryError, NotADirectoryError) as error:
        log.warning("the copy of a run's ledger is no file", run=run, reason=str(error))
        return []


def _decoded(lines: Iterable[bytes]) -> Iterator[Commit]:
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line, type=Commit)


def _keep(path: Path, record: BaseModel) -> None:
    with written_beside(path) as beside:
        beside.write_text(record.model_dump_json() + "\n")


def _kept(folder: Path, kind: type[R]) -> Iterator[R]:
    for path in sorted(folder.glob(f"[!.]*/{RECORD}")):
        try:
            record = kind.model_validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            log.warning("a record's copy cannot be read", file=str(path), reason=str(error))
            continue
        if getattr(record, "id", None) == path.parent.name:
            yield record
