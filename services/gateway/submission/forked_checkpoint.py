"""Keeps the checkpoint that a fork starts from while the forked run deletes its old ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import anyio.to_thread

from services.contracts.records import RunRecord
from services.http import Problem
from services.volume import Volume
from services.volume.kept_checkpoints import pin, pinned_names


@asynccontextmanager
async def pinned(volume: Volume, fork: RunRecord) -> AsyncIterator[None]:
    """Pin the checkpoint that `fork` starts from. Take a new pin away if the body raises. Raises
    Problem 409 if the checkpoint is gone."""
    checkpoint = volume.path(fork.checkpoint or "")
    was_pinned = checkpoint.name in await anyio.to_thread.run_sync(pinned_names, checkpoint.parent)
    try:
        await anyio.to_thread.run_sync(pin, checkpoint, True)
    except FileNotFoundError:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"the checkpoint of step {fork.committed_step} of run {fork.resume_from} is not on the "
            "data volume any more: fork another step (`headrace checkpoints` lists them)",
        ) from None
    try:
        yield
    except BaseException:
        if not was_pinned:
            await anyio.to_thread.run_sync(pin, checkpoint, False)
        raise
