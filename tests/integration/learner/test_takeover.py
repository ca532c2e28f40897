"""The state that a learner uses after a takeover: a real Redis, no training."""

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest
import torch

from learner.coordinate.run_rank import take_over
from learner.distributed import Ranks
from learner.persist.disk_retry import OtherRank
from learner.rank import described_host
from learner.store.run_store import RunStore
from learner.store.thread import StoreThread
from services.contracts.devices import LearnerDevices
from services.settings import Settings
from services.store import Fenced, Store
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import SFT, submit

ALONE = Ranks(0, 1, torch.device("cpu"))


class Second(Ranks):
    """A rank that receives rank 0's messages."""

    heard = b""

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        return self.heard


class First(Ranks):
    """The rank that `Second` listens to."""

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        Second.heard = make()
        return Second.heard


async def test_a_commit_of_the_learner_before_during_the_takeover_is_seen(
    place: Place, store: Store
) -> None:
    """It slept, wakes when its successor has found the run, and commits before the successor takes
    over."""
    await submit(store, "r", SFT)
    fencing_token = await store.runs.acquire("r", "before")
    found = await store.runs.get("r")
    assert found is not None
    directory = "runs/r/checkpoints/step-000003-before"
    await store.trajectories.commit("r", fencing_token, "before", 3, directory)
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    with StoreThread(settings, threading.Event()) as thread:
        run = RunStore(thread, found)

        record = await asyncio.to_thread(take_over, ALONE, run)

    assert (record.committed_step, record.checkpoint) == (3, directory)
    assert run.committed_step == 3
    assert await store.runs.lineages("r") == [("before", 0), (record.lineage, 3)]


async def test_a_disk_of_another_rank_waits_until_a_successor_takes_the_run_over(
    place: Place, store: Store
) -> None:
    """While its disk is full, each rank checks whether the run is still its learner's."""
    await submit(store, "r", SFT)
    found = await store.runs.get("r")
    assert found is not None
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    cpu = torch.device("cpu")
    with StoreThread(settings, threading.Event()) as thread:
        second = RunStore(thread, found)
        first = RunStore(thread, found)
        await asyncio.to_thread(take_over, First(0, 2, cpu), first)
        await asyncio.to_thread(take_over, Second(1, 2, cpu), second)
        assert second.lineage == first.lineage

        assert not await asyncio.to_thread(OtherRank(second, 1).cancelled)
        await store.runs.acquire("r", "after")
        with pytest.raises(Fenced):
            await asyncio.to_thread(OtherRank(second, 1).cancelled)


async def test_a_learner_reports_the_memory_of_its_host_again_and_again(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.store.thread.LOCK_SECONDS", 0.5)
    monkeypatch.setattr("learner.store.thread.REPORT_EVERY", 1)
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    reports = itertools.count()
    reported = threading.Event()

    def devices() -> LearnerDevices:
        if (free := next(reports)) == 2:
            reported.set()
        host = described_host(2).model_copy(update={"free": free})
        return LearnerDevices(ranks=2, gpus=[], host=host)

    with StoreThread(settings, threading.Event()) as thread:
        await asyncio.to_thread(thread.take_pool)
        thread.devices = devices
        assert await asyncio.to_thread(reported.wait, 20)
        found = await store.pools.devices(settings.pool)

    assert found is not None
    assert found.host is not None
    assert found.host.free >= 1
    # Two ranks of the size of this process.
    assert found.host.used > 200 << 20
