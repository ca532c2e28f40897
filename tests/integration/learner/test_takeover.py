"""What a learner goes by once a run is its own: a real Redis, no training."""

import asyncio
import threading

import torch

from learner.coordinate.ranks import take_over
from learner.distributed import Ranks
from learner.store.pool_lock import StoreThread
from learner.store.run_store import RunStore
from services.settings import Settings
from services.store import Store
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import SFT, submit

ALONE = Ranks(0, 1, torch.device("cpu"))


async def test_a_commit_of_the_learner_before_during_the_takeover_is_seen(
    place: Place, store: Store
) -> None:
    """It slept, wakes when its successor has found the run, and commits before that takes over."""
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
