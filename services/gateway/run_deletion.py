"""Deletes runs that are over, unless another run needs them.

The run is marked first, so that no run that needs it is submitted meanwhile. Then its folder is
renamed, so that it disappears whole; then its keys in Redis are deleted; then the files, which may
take a while. If the gateway dies in between, its next start deletes the files; a run that is still
in Redis can be deleted again.
"""

import asyncio
import contextlib
import shutil
import time
from http import HTTPStatus
from pathlib import Path

import anyio.to_thread

from services.contracts.records import RunRecord
from services.gateway.dependencies import Dependencies, open_chains
from services.http import Problem
from services.models.path import starts_from
from services.runtime.logs import get_logger

log = get_logger(__name__)

_DELETED = ".deleted-"
"""How folders begin whose runs are gone; names with a dot are in no backup."""

_PATIENCE = 6.0
"""Seconds for a learner that has just ended a run to release it, which takes milliseconds."""


async def delete_run(deps: Dependencies, record: RunRecord) -> None:
    """Delete a run and all its files. Raises Problem 409 if it is not over or another run needs it;
    OSError if its files cannot be removed, and the run stays."""
    named = f"run {record.name} ({record.id})"
    if not record.state.final:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{named} is {record.state}: cancel it, and delete it once it is over",
        )
    await deps.store.runs.mark_deleting(record.id)
    try:
        await _wait_until_unneeded(deps, record, named)
        await anyio.to_thread.run_sync(_set_aside, deps.volume.path(f"runs/{record.id}"))
    except BaseException:
        await deps.store.runs.unmark_deleting(record.id)
        raise
    await deps.store.runs.delete(record.id)
    await anyio.to_thread.run_sync(remove_deleted, deps.volume.root)


async def _wait_until_unneeded(deps: Dependencies, record: RunRecord, named: str) -> None:
    way_out = "continues it: delete that one first"
    needed_by = [run for run in await deps.store.runs.all() if run.resume_from == record.id]
    if not needed_by:
        way_out = "starts from what it made: cancel that one, or let it end"
        live = await deps.store.runs.live()
        needed_by = [run for run in live if record.id in starts_from(run.config)]
    for chain in await open_chains(deps):
        steps = chain.steps
        if any(record.id in (*step.runs, *starts_from(step.config)) for step in steps):
            raise Problem(
                HTTPStatus.CONFLICT,
                f"{named} is needed by the chain {chain.name} ({chain.id}, {chain.state}): cancel "
                "that, or let it end",
            )
    if needed_by:
        other = needed_by[0]
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{named} is needed by {other.name} ({other.id}, {other.state}), which {way_out}",
        )
    deadline = time.monotonic() + _PATIENCE
    while not await deps.store.runs.free(record):
        if time.monotonic() > deadline:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"the learner of pool {record.pool!r} has not released {named} yet: try again in "
                "a moment, while that learner runs",
            )
        await asyncio.sleep(0.1)


def _set_aside(folder: Path) -> None:
    # Only runs that started have a folder.
    with contextlib.suppress(FileNotFoundError):
        folder.rename(folder.with_name(_DELETED + folder.name))


def remove_deleted(data: Path) -> None:
    """Remove the files of deleted runs. The next deletion, or start, tries again to remove what
    cannot be removed now."""
    for folder in data.glob(f"runs/{_DELETED}*"):
        # The folder may be a link: somebody has moved it to another volume.
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        if folder.is_symlink() and not folder.exists():
            folder.unlink(missing_ok=True)
        if folder.exists():
            log.warning("files of a deleted run cannot be removed", folder=str(folder))
