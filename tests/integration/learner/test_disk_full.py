"""A really full disk: a limit on the size of the files that the learner writes."""

import asyncio
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from learner.checkpoints.checkpoint_reader import verify
from services.contracts.config import parse_config
from services.contracts.records import RunRecord, RunState
from services.store import Store
from services.volume import Volume, check_file
from tests.integration.learner.conftest import Place
from tests.integration.learner.forked import Learner
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, submit, supervised
from tests.integration.learner.torch_worker import eventually, serving

# More than any line or small file that a learner writes, less than any weights.
SMALL = 30_000


@contextmanager
def full_disk(process: Learner, size: int = SMALL) -> Iterator[None]:
    """Limit the files that `process` writes to `size` bytes. (Python ignores SIGXFSZ, so a write
    fails as on a full disk.)"""
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    yield
    if process.poll() is None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)


async def in_state(store: Store, run: str, state: RunState) -> RunRecord | None:
    record = await store.runs.get(run)
    return record if record and record.state is state else None


async def lease(store: Store, record: RunRecord) -> str:
    """Return why a worker that serves the newest version gets no lease."""
    granted = await store.tasks.lease(
        record.id,
        worker="another",
        lineage=record.lineage,
        version=record.version,
        count=1,
        ttl=60.0,
        reserve_bytes=4096,
    )
    return granted.refusal


async def test_a_full_disk_pauses_the_run_and_it_goes_on_by_itself(
    place: Place, store: Store
) -> None:
    await add_sums(store, place.data)
    learner = place.learner()
    with full_disk(learner):
        await submit(store, "first", SFT)
        paused: RunRecord = await eventually(partial(in_state, store, "first", RunState.PAUSED))
        assert paused.reason.startswith("cannot write datasets/sums/tokens/")
        assert "File too large; raise the learner's limit on the size of a file" in paused.reason
        assert "the run goes on by itself" in paused.reason
    assert (await ended(store, "first")).state is RunState.SUCCEEDED

    training = {"max_steps": 12, "checkpoint_every": 3, "tokens_per_microbatch": 64}
    config: dict[str, Any] = rl(training=training)
    await submit(store, "second", config)
    volume = Volume(place.data)
    async with serving(store, volume, "second", parse_config(config)):

        async def reached(step: int) -> bool:
            record = await store.runs.get("second")
            # The checkpoint of step 3 is written while step 4 is trained.
            return record is not None and record.step >= step and record.checkpoint is not None

        await eventually(partial(reached, 4))
        with full_disk(learner):
            paused = await eventually(partial(in_state, store, "second", RunState.PAUSED))
            assert paused.reason.startswith("cannot write runs/second/")
            assert await lease(store, paused) == "state"
            # Files under their final name are whole: the newest version, and the current
            # checkpoint.
            newest = await store.weights.newest("second")
            assert newest is not None
            (file,) = newest.files
            check_file(volume.path(file.name), file.bytes, file.xxh3)
            assert paused.checkpoint is not None
            assert verify(volume.path(paused.checkpoint)).step == paused.committed_step
        record = await ended(store, "second")

    assert (record.state, record.step, record.committed_step) == (RunState.SUCCEEDED, 12, 12)
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (12 * 4, 0, [])
    unfinished = [path.name for path in (place.data / "runs/second").rglob(".*")]
    assert unfinished == []
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


@pytest.mark.parametrize("how", ["cancel", "SIGTERM"])
async def test_a_run_that_is_asked_to_end_does_not_wait_for_the_disk(
    place: Place, store: Store, how: str
) -> None:
    learner = await supervised(place, store)
    config = rl(training={"checkpoint_every": 3, "tokens_per_microbatch": 64, "max_steps": 1000})
    await submit(store, "second", config)
    async with serving(store, Volume(place.data), "second", parse_config(config)):

        async def committed() -> bool:
            record = await store.runs.get("second")
            return record is not None and record.committed_step >= 3

        await eventually(committed)
        with full_disk(learner):
            paused = await eventually(partial(in_state, store, "second", RunState.PAUSED))
            if how == "cancel":
                await store.runs.cancel("second")
                record = await ended(store, "second")
                assert record.state is RunState.CANCELLED
            learner.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(learner.wait) == 0
    left = await store.runs.get("second")
    assert left is not None
    assert left.checkpoint is not None
    assert left.state is (RunState.CANCELLED if how == "cancel" else RunState.PAUSED)
    assert left.committed_step >= paused.committed_step
    assert verify(place.data / left.checkpoint).step == left.committed_step
    found = await store.ledger.audit("second")
    assert found.problems == []
