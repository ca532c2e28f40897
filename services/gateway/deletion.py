"""Deletes runs that are over: who still needs one, and in what order its parts go.

The run is marked first, so that none is submitted meanwhile that needs it. Then the folder is
renamed, so that it goes whole or not at all; then goes what the store knows; then the files, which
may take a while. A gateway that dies in between finishes the files when it starts, and the run,
where the store still knows it, can be deleted again.
"""

import asyncio
import contextlib
import shutil
import time
from http import HTTPStatus
from pathlib import Path

import anyio.to_thread

from services.contracts.records import RunRecord
from services.gateway.access import Access
from services.http import Problem
from services.logs import get_logger
from services.model_path import starts_from

log = get_logger(__name__)

_DELETED = ".deleted-"
"""How folders begin whose runs are gone; names with a dot are in no backup."""

_PATIENCE = 6.0
"""Seconds for a learner that has just ended a run to let go of it, which takes milliseconds."""


async def delete_run(given: Access, record: RunRecord) -> None:
    """Delete a run with all that it has made. Raises Problem 409 where it is not over, or another
    run needs it; OSError where its files cannot be removed: it stays, then."""
    named = f"run {record.name} ({record.id})"
    if not record.state.final:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{named} is {record.state}: cancel it, and delete it once it is over",
        )
    await given.store.runs.doom(record.id)
    try:
        await _wait_until_unneeded(given, record, named)
        await anyio.to_thread.run_sync(_set_aside, given.volume.path(f"runs/{record.id}"))
    except BaseException:
        await given.store.runs.spare(record.id)
        raise
    await given.store.runs.delete(record.id)
    await anyio.to_thread.run_sync(remove_deleted, given.volume.root)


async def _wait_until_unneeded(given: Access, record: RunRecord, named: str) -> None:
    for other in await given.store.runs.list():
        if (need := _need(other, record.id)) is not None:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"{named} is needed by {other.name} ({other.id}, {other.state}), which {need}",
            )
    deadline = time.monotonic() + _PATIENCE
    while not await given.store.runs.free(record):
        if time.monotonic() > deadline:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"the learner of pool {record.pool!r} has not let go of {named} yet: try again in "
                "a moment, while that learner runs",
            )
        await asyncio.sleep(0.1)


def _need(other: RunRecord, run: str) -> str | None:
    """What `other` needs `run` for, and the way out; None where it does not."""
    if other.resume_from == run:
        return "continues it: delete that one first"
    if not other.state.final and run in starts_from(other.config):
        return "starts from what it made: cancel that one, or let it end"
    return None


def _set_aside(folder: Path) -> None:
    # A run that never started has none.
    with contextlib.suppress(FileNotFoundError):
        folder.rename(folder.with_name(_DELETED + folder.name))


def remove_deleted(data: Path) -> None:
    """Remove the files of runs that are gone. What cannot be removed now is tried again at the next
    deletion, or start."""
    for folder in data.glob(f"runs/{_DELETED}*"):
        # One that somebody has moved to another volume has a link in its place.
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        if folder.is_symlink() and not folder.exists():
            folder.unlink(missing_ok=True)
        if folder.exists():
            log.warning("files of a deleted run cannot be removed", folder=str(folder))
