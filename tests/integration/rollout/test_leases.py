"""A worker's leases that the store no longer knows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollout.work.leases import Leases
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.rows.task import TaskPosition
from services.launch import Stack, UpOptions
from services.store import Store
from services.store.work.tasks import Lease


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with Stack(UpOptions(data=tmp_path, parts=frozenset({"redis"}))) as stack:
        store = Store.from_url(stack.redis_url)
        yield store
        await store.close()


async def _until_cancelled() -> None:
    await asyncio.Event().wait()


def held(store: Store) -> tuple[Leases, asyncio.Task[None]]:
    """A lease on attempt `a`, which the store does not know, and its task."""
    leases = Leases("run", store, 30.0, lambda: None)
    task = asyncio.create_task(_until_cancelled())
    leases.hold(Lease("a", TaskPosition(0, 0, 1, 0)), task)
    return leases, task


async def test_work_on_a_lost_lease_is_cancelled(store: Store) -> None:
    leases, task = held(store)

    await leases.renew(True)

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_lease_that_is_being_completed_is_not_lost(store: Store) -> None:
    leases, task = held(store)
    await leases.complete("a", 0, "lineage", b"group", GroupLengths(1, (1,)))

    await leases.renew(True)

    assert task.cancelling() == 0
    task.cancel()
