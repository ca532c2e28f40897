"""Learners that die before their first commit leave groups of lineages that no checkpoint has."""

import asyncio
import signal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from learner.coordinate.crash_limit import CrashLimit
from learner.settings import EXIT_CRASH
from services.contracts.config import parse_config
from services.contracts.evaluation import EvaluationRequest
from services.contracts.records import RunRecord, RunState
from services.evaluations import folder_of, measured, results
from services.gateway.run_edits import RunPatch, edit_run
from services.gateway.run_pauses import pause_run, resume_run
from services.store import Store
from services.volume import Volume
from tests.evaluating import answered
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import ended, rl, submit, supervised
from tests.integration.learner.torch_worker import TorchWorker, eventually, serving


async def test_a_run_goes_on_after_deaths_before_its_first_checkpoint(
    place: Place, store: Store
) -> None:
    """On different numbers of ranks: three ranks share the samples of a recorded batch of four
    groups, so that groups are split."""
    learners = [await supervised(place, store)]
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

    for deaths, ranks in ((1, 3), (2, 2)):
        await eventually(partial(reached, deaths + 1, deaths))
        learners[-1].send_signal(signal.SIGKILL)
        for learner in learners:
            await asyncio.to_thread(learner.wait)
        learners = place.ranks(ranks)
    record = await ended(store, "second")
    working.cancel()
    assert place.log.read_text().count("replaying a recorded batch") >= 2
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, 8, "")
    assert [began for _, began in await store.runs.lineages("second")] == [0, 0, 0]
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (8 * 4, 0, [])
    assert found.max_staleness_seen <= 1
    for learner in learners:
        learner.terminate()
    assert [learner.wait() for learner in learners] == [0, 0]


async def test_steps_that_are_trained_again_after_a_kill_have_the_values_that_they_had(
    place: Place, store: Store
) -> None:
    """No step is committed before the kill, so all of them are trained again. The run is paused
    before it, and stays so until it is resumed."""
    learner = await supervised(place, store)
    training = {"max_steps": 6, "checkpoint_every": 50}
    raw = rl(training=rl()["training"] | training)
    await submit(store, "second", raw)
    deps: Any = SimpleNamespace(store=store)

    async def now() -> RunRecord:
        record = await store.runs.get("second")
        assert record is not None
        return record

    async def edit(**values: Any) -> None:
        await edit_run(deps, await now(), RunPatch(**values), "alice")

    async def trained(step: int) -> bool:
        return (await now()).step >= step

    async def paused(lineages: int) -> bool:
        started = len(await store.runs.lineages("second")) == lineages
        return started and (await now()).state is RunState.PAUSED

    async def published() -> bool:
        newest = await store.weights.newest("second")
        return newest is not None and newest.lineage == (await now()).lineage

    async def rates(after: str = "0") -> tuple[dict[int, float], str]:
        events = [each for each in await store.events.read("second", after) if each.kind == "step"]
        return {int(each.data["step"]): each.data["train/lr"] for each in events}, events[-1].id

    async with serving(store, Volume(place.data), "second", parse_config(raw)):
        await eventually(partial(trained, 1))
        await edit(lr=1e-4, max_steps=12)

        async def trained_with_it() -> bool:
            taken = (await now()).edits[0].step
            return taken is not None and max((await rates())[0]) > taken

        await eventually(trained_with_it)
        await pause_run(deps, await now(), "alice")
        await eventually(partial(paused, 1))
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        before, last = await rates()
        # This edit comes while no learner runs: steps that are planned do not have it.
        await edit(lr=3e-4, max_staleness=0)
        learner = place.learner()
        await eventually(partial(paused, 2))
        await eventually(published)
        assert ((await now()).reason, await paused(2)) == ("on request of alice", True)
        assert (await rates())[1] == last
        await resume_run(deps, await now(), "bob")
        record = await ended(store, "second")
    again, _ = await rates(last)
    events = await store.events.read("second", "0")
    asked = [(each.kind, each.data["by"]) for each in events if each.kind in ("paused", "resumed")]
    states = [each.data["state"] for each in events if each.kind == "state"]
    assert asked == [("paused", "alice"), ("resumed", "bob")]
    assert states == ["starting", "running", "paused", "paused", "running", "succeeded"]
    assert (record.paused_by, record.reason) == ("", "")
    assert (record.state, record.step, record.max_steps) == (RunState.SUCCEEDED, 12, 12)
    first, second = ({edit.step for edit in part} for part in (record.edits[:2], record.edits[2:]))
    (taken,), (later,) = first, second
    assert taken is not None
    assert later is not None
    assert (taken > 1, later > max(before)) == (True, True)
    assert {step: rate for step, rate in again.items() if step in before} == before
    rates_of = (before[taken - 1], before[taken], again[later])
    assert rates_of == pytest.approx((1e-3, 1e-4, 3e-4))
    edits = [each.data for each in events if each.kind == "edit"]
    assert [each.get("step") for each in edits] == [None, taken, None, later]
    assert (edits[0]["by"], edits[1]["values"]) == ("alice", {"lr": 1e-4, "max_steps": 12})
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (12 * 4, 0, [])
    learner.terminate()
    assert learner.wait() == 0


async def test_a_run_whose_newest_checkpoint_is_damaged_trains_each_task_once_in_what_remains(
    place: Place, store: Store
) -> None:
    learners = [await supervised(place, store)]
    training = {"max_steps": 8, "checkpoint_every": 1, "keep_checkpoints": 3}
    raw = rl(training=rl()["training"] | training)
    await submit(store, "second", raw)
    async with serving(store, Volume(place.data), "second", parse_config(raw)):

        async def committed() -> bool:
            record = await store.runs.get("second")
            return record is not None and record.committed_step >= 4

        await eventually(committed)
        learners[0].send_signal(signal.SIGKILL)
        learners[0].wait()
        record = await store.runs.get("second")
        assert record is not None
        assert record.checkpoint is not None
        newest = place.data / record.checkpoint
        (newest / "training/optimizer.safetensors").write_bytes(b"cut")
        # Two ranks. One of them reads the damaged file.
        learners = place.ranks(2)
        record = await ended(store, "second")
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, 8, "")
    said = [event.data.get("message", "") for event in await store.events.read("second", "0")]
    (warning,) = [message for message in said if "whose checkpoint is whole" in message]
    assert f"checkpoint {newest.name} is damaged: training/optimizer.safetensors" in warning
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (8 * 4, 0, [])
    for learner in learners:
        learner.terminate()
    assert [learner.wait() for learner in learners] == [0, 0]


async def test_a_run_that_is_cancelled_at_once_ends_in_the_middle_of_its_step(
    place: Place, store: Store
) -> None:
    learner = await supervised(place, store)
    endless = {**rl()["algorithm"], "epochs_per_batch": 100_000}
    raw = rl(algorithm=endless)
    await submit(store, "second", raw)
    async with serving(store, Volume(place.data), "second", parse_config(raw)):

        async def planned() -> bool:
            return bool(await store.trajectories.plans("second"))

        await eventually(planned)
        await store.runs.cancel("second", now=True)
        record = await store.runs.get("second")
        assert record is not None
        assert (record.state, record.reason) == (RunState.CANCELLED, "at once, on request")
        assert await asyncio.to_thread(learner.wait, 20) == EXIT_CRASH

        learner = place.learner()

        async def released() -> bool:
            return await store.runs.free(record)

        await eventually(released)
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_a_successor_reports_the_evaluation_and_the_waiting_learner_notices_it(
    place: Place, store: Store
) -> None:
    """Nobody samples. The first learner waits for groups with an evaluation open, and dies. The
    second continues the evaluation, and the run is taken from it while it waits."""
    learner = await supervised(place, store)
    await submit(store, "second", rl(evaluation={"dataset": "sums", "rows": 2}))

    async def waiting(starts: int) -> str | None:
        record = await store.runs.get("second")
        lineages = await store.runs.lineages("second")
        if record is None or record.state is not RunState.RUNNING or len(lineages) != starts:
            return None
        requests = await store.evaluations.requests("second")
        return requests[0].id if requests else None

    id = await eventually(partial(waiting, 1))
    learner.send_signal(signal.SIGKILL)
    learner.wait()
    learner = place.learner()
    assert await eventually(partial(waiting, 2)) == id == "000000-sums"
    evaluations = store.evaluations
    (request,) = await evaluations.requests("second")
    leased = await evaluations.lease(
        "second", worker="w", version=request.version, busy=False, count=2, ttl=60
    )
    for (attempt, row), status in zip(leased.rows, ("correct", "wrong"), strict=True):
        assert await evaluations.complete("second", id, attempt, answered(row, status))

    async def reported() -> bool:
        return not await evaluations.requests("second")

    await eventually(reported)
    told = [e.data for e in await store.events.read("second", "0") if e.kind == "evaluation"]
    assert [(data["step"], data["accuracy"]) for data in told] == [(0, 0.5)]

    # Reported once: a start at the same step does not request it again.
    learner.send_signal(signal.SIGKILL)
    learner.wait()
    learner = place.learner()
    await eventually(partial(_started, store, 3))
    assert await store.evaluations.requests("second") == []

    await store.runs.acquire("second", "another")

    async def noticed() -> bool:
        return len(await store.runs.lineages("second")) == 5

    await eventually(noticed)
    assert "another learner has taken this run over" in place.log.read_text()
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_a_run_whose_last_evaluation_was_interrupted_has_not_succeeded(
    place: Place, store: Store
) -> None:
    learner = await supervised(place, store)
    raw = rl(
        training=rl()["training"] | {"max_steps": 2},
        evaluation={"dataset": "sums", "rows": 2, "at_start": False},
    )
    await submit(store, "second", raw)
    config = parse_config(raw)

    async def asked() -> bool:
        return bool(await store.evaluations.requests("second"))

    # This worker samples for training, and answers no evaluation.
    async with serving(store, Volume(place.data), "second", config):
        await eventually(asked)
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0
    record = await store.runs.get("second")
    assert record is not None
    assert (record.state, record.step, record.committed_step) == (RunState.RUNNING, 2, 2)
    assert await asked()

    learner = place.learner()
    await eventually(partial(_started, store, 2))
    await store.runs.cancel("second")
    record = await ended(store, "second")
    assert (record.state, record.step) == (RunState.CANCELLED, 2)
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_an_evaluation_that_was_cancelled_is_resumed_and_answers_each_row_once(
    place: Place, store: Store
) -> None:
    learner = await supervised(place, store)
    raw = rl(training={"max_steps": 0}, evaluation={"dataset": "sums", "rows": 4})

    async def asked(run: str) -> EvaluationRequest | None:
        requests = await store.evaluations.requests(run)
        return requests[0] if requests else None

    async def answer(run: str, count: int) -> list[int]:
        """Have a worker answer `count` rows of the evaluation of `run`, or all if there are
        fewer."""
        request = await eventually(partial(asked, run))
        leased = await store.evaluations.lease(
            run, worker="w", version=request.version, busy=False, count=count, ttl=60
        )
        for attempt, row in leased.rows:
            given = answered(row, "correct")
            assert await store.evaluations.complete(run, request.id, attempt, given)
        return [row for _, row in leased.rows]

    await submit(store, "second", raw)
    assert await answer("second", 3) == [0, 1, 2]
    await store.runs.cancel("second")
    assert (await ended(store, "second")).state is RunState.CANCELLED

    await submit(store, "third", raw, resume_from="second")
    assert await answer("third", 4) == [3]
    assert (await ended(store, "third")).state is RunState.SUCCEEDED
    (record,) = results(place.data, "third")
    assert (record.state, record.answered, record.metrics["accuracy"]) == ("done", 4, 1.0)
    rows = measured(folder_of(place.data, "third", record.id))
    assert [one.row for one in rows] == [0, 1, 2, 3]
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_a_rank_that_is_killed_again_and_again_at_one_step_fails_the_run_in_words(
    place: Place, store: Store
) -> None:
    learner = await supervised(place, store)
    learner.send_signal(signal.SIGTERM)
    learner.wait()
    raw = rl(training=rl()["training"] | {"max_steps": 8, "checkpoint_every": 8})
    await submit(store, "second", raw)
    # It was killed nine times before at step 3, which it replays here.
    for _ in range(9):
        crashes = CrashLimit(place.data / "runs/second/crashes-0.json", 0)
        crashes.check()
        crashes.busy(3)

    async with serving(store, Volume(place.data), "second", parse_config(raw)):
        learner = place.learner("tests.integration.learner.dying_learner", "3", "SIGSEGV")
        assert await asyncio.to_thread(learner.wait) == -signal.SIGSEGV
        learner = place.learner()
        record = await ended(store, "second")

    assert record.state is RunState.FAILED
    assert "was killed 10 times after step 0, never further than at work on step 3" in record.reason
    found = await store.ledger.audit("second")
    assert (found.trained, found.problems) == (0, [])
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def _started(store: Store, times: int) -> bool:
    record = await store.runs.get("second")
    lineages = await store.runs.lineages("second")
    return record is not None and record.state is RunState.RUNNING and len(lineages) == times
