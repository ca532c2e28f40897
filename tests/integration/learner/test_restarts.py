"""Learners that die before they commit anything leave groups of lineages that no checkpoint has."""

import asyncio
import signal
from functools import partial

import pytest

from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import MIDTRAIN, add_sums, ended, rl, submit
from tests.integration.learner.torch_worker import TorchWorker, eventually

pytestmark = pytest.mark.timeout(240)


async def test_a_run_goes_on_after_deaths_before_its_first_checkpoint(
    place: Place, store: Store
) -> None:
    await add_sums(store, place.data)
    await submit(store, "first", MIDTRAIN)
    learner = place.learner()
    await ended(store, "first")
    raw = rl(training=rl()["training"] | {"max_steps": 8, "checkpoint_every": 8})
    await submit(store, "second", raw)
    worker = TorchWorker(
        store,
        Volume(place.data),
        "second",
        parse_config(raw),  # type: ignore[arg-type]
    )
    working = asyncio.create_task(worker.work())

    async def reached(step: int, lineages: int) -> bool:
        record = await store.runs.get("second")
        started = len(await store.runs.lineages("second")) == lineages
        return record is not None and started and record.step >= step

    for deaths in (1, 2):
        await eventually(partial(reached, deaths + 1, deaths))
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        learner = place.learner()
    record = await ended(store, "second")
    working.cancel()
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, 8, "")
    assert [began for _, began in await store.runs.lineages("second")] == [0, 0, 0]
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (8 * 4, 0, [])
    assert found.max_staleness_seen <= 1
    learner.send_signal(signal.SIGTERM)
    assert learner.wait(timeout=30) == 0
