"""The last group of a version: the learner waits for it before it is too stale, or does not."""

import asyncio
from functools import partial
from typing import Any

from learner.coordinate.planner import REQUEUED
from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import ended, rl, submit, supervised
from tests.integration.learner.torch_worker import eventually, serving


async def test_a_straggler_is_waited_for_or_resampled(place: Place, store: Store) -> None:
    """A group begun under version 0 may be trained at 1 (the second step), and not at 2."""
    learner = await supervised(place, store)

    for stragglers in ("wait", "resample"):
        raw: dict[str, Any] = rl(
            rollout={"max_staleness": 1, "stragglers": stragglers},
            training={"max_steps": 4, "checkpoint_every": 4, "tokens_per_microbatch": 64},
        )
        await submit(store, stragglers, raw)

        async def trained(steps: int, run: str = stragglers) -> bool:
            record = await store.runs.get(run)
            return record is not None and record.step == steps

        config: Any = parse_config(raw)
        async with serving(store, Volume(place.data), stragglers, config) as worker:
            worker.straggler = asyncio.Event()
            if stragglers == "resample":
                # Its task is leased again after its lease has lapsed, because the run's last batch
                # needs it.
                worker.lease_seconds = 5.0
            if stragglers == "wait":
                await eventually(partial(trained, 1))

                async def all_done(worker: Any = worker) -> bool:
                    # All other groups that may be begun under version 1 are complete.
                    return bool(worker.live.version == 1 and worker.refused == "admission")

                await eventually(all_done)
                for _ in range(20):
                    assert await trained(1)
                    await asyncio.sleep(0.05)
                worker.straggler.set()
            record = await ended(store, stragglers)
        assert (record.state, record.step) == (RunState.SUCCEEDED, 4)
        found = await store.ledger.audit(stragglers)
        assert (found.lost, found.duplicated, found.max_staleness_seen) == (0, 0, 1)
        assert worker.late is not None
        assert worker.late.done() == (stragglers == "wait")
        await _cancelled(worker.late)
    assert REQUEUED not in place.log.read_text()
    learner.terminate()
    assert learner.wait() == 0


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
