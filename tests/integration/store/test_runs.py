"""Runs: submitted, queued, taken over, ended, continued by another."""

import pytest

from services.contracts.records import RunState
from services.store import Fenced, StillRunning
from services.store.keys import RUNS, run_key
from tests.integration.store.scene import RUN, Scene, record, segment, tasks

# --- the queue ----------------------------------------------------------------------------------


async def test_a_pool_takes_its_runs_one_at_a_time_by_priority_then_age(scene: Scene) -> None:
    runs = scene.store.runs
    await scene.dataset(10)
    await runs.submit(record("young", created=3.0))
    await runs.submit(record("old", created=2.0))
    await runs.submit(record("urgent", created=4.0, priority=1))
    await runs.submit(record("elsewhere", pool="other"))
    taken = []
    for _ in range(3):
        for _ in range(2):
            run = await runs.take("default")
            assert run is not None
            taken.append(run.id)
        await runs.finish(taken[-1], "default", "succeeded", "")
    assert taken == ["urgent", "urgent", "old", "old", "young", "young"]
    assert await runs.take("default") is None


async def test_a_queued_run_is_cancelled_at_once_an_active_one_is_asked_to_end(
    scene: Scene,
) -> None:
    runs = scene.store.runs
    await scene.dataset(10)
    for run in ("active", "queued"):
        await runs.submit(record(run, created=1.0 if run == "active" else 2.0))
    await runs.take("default")
    for run in ("active", "queued"):
        await runs.cancel(run)
    found = {r.id: r.state for r in await runs.all()}
    assert found == {"active": RunState.CANCELLING, "queued": RunState.CANCELLED}
    for state in ("starting", "running", "paused"):
        assert not await runs.set_state("active", state, "")
    await runs.finish("active", "default", "cancelled", "")
    assert await runs.take("default") is None


async def test_a_run_that_was_written_but_never_queued_can_be_cancelled(scene: Scene) -> None:
    await scene.dataset(10)
    await scene.store.runs.submit(record())
    await scene.raw.delete("headrace:{pool:default}:queue")
    await scene.store.runs.cancel(RUN)
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert run.state is RunState.CANCELLED


async def test_a_missing_run_is_named(scene: Scene) -> None:
    for call in (
        scene.store.runs.cancel("nobody"),
        scene.store.runs.acquire("nobody", "aaa"),
        scene.store.runs.submit(record(resume_from="nobody")),
        scene.store.ledger.audit("nobody"),
    ):
        with pytest.raises(KeyError, match="there is no run nobody"):
            await call
    assert await scene.raw.keys("*nobody*") == []


async def test_a_run_is_written_once(scene: Scene) -> None:
    await scene.start(eta=9)
    await scene.leased(3)
    await scene.store.runs.submit(record(name="another"))
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert (run.name, run.state) == (RUN, RunState.RUNNING)
    assert tasks(await scene.leased(1)) == [3]
    assert await scene.raw.zcard(RUNS) == 1


# --- states -------------------------------------------------------------------------------------


async def test_a_run_from_before_summaries_had_names_has_those_of_its_config(scene: Scene) -> None:
    await scene.start()
    before = await scene.store.runs.summaries([RUN])
    await scene.raw.hdel(run_key(RUN, "run"), "model", "datasets")
    after = await scene.store.runs.summaries([RUN, "nobody"])
    assert after == [*before, None]
    assert after[0] is not None
    assert (after[0].model, after[0].datasets) != ("", [])


async def test_states_follow_each_other_and_each_is_an_event(scene: Scene) -> None:
    runs = scene.store.runs
    await scene.dataset(10)
    await runs.submit(record())
    steps = [("starting", ""), ("running", ""), ("paused", "disk full"), ("running", "")]
    for state, reason in [*steps, ("failed", "why")]:
        assert await runs.set_state(RUN, state, reason)
    events = await scene.store.events.read(RUN, "0")
    assert [(e.kind, e.data["state"], e.data["reason"]) for e in events] == [
        ("state", state, reason) for state, reason in [*steps, ("failed", "why")]
    ]
    run = await runs.get(RUN)
    assert run is not None
    assert (run.state, run.reason) == (RunState.FAILED, "why")
    assert run.started is not None
    assert run.finished is not None
    assert run.started <= run.finished


@pytest.mark.parametrize("final", ["succeeded", "failed", "cancelled"])
async def test_a_final_state_never_changes(scene: Scene, final: str) -> None:
    await scene.start()
    assert await scene.store.runs.set_state(RUN, final, "first")
    assert not await scene.store.runs.set_state(RUN, "running", "")
    assert not await scene.store.runs.fail(RUN, "second")
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert (run.state, run.reason) == (final, "first")


async def test_a_state_changes_only_from_the_given_one(scene: Scene) -> None:
    runs = scene.store.runs
    await scene.start()
    assert not await runs.set_state(RUN, "cancelled", "", leaving=RunState.QUEUED)
    assert await runs.set_state(RUN, "paused", "", leaving=RunState.RUNNING)
    assert not await runs.set_state("nobody", "running", "")


# --- learners -----------------------------------------------------------------------------------


async def test_a_pool_has_one_learner_and_its_lock_lapses(scene: Scene) -> None:
    pools = scene.store.pools
    assert await pools.lock("default", "a:1", 60) == ""
    assert await pools.lock("default", "a:1", 60) == ""
    assert await pools.lock("default", "b:2", 60) == "a:1"
    assert await pools.lock("other", "b:2", 60) == ""
    assert await pools.prolong("default", "a:1", 0.001)
    assert not await pools.prolong("default", "b:2", 60)
    # Redis deletes a key of a millisecond by itself; the test asks until it has.
    while await pools.lock("default", "b:2", 60):
        continue
    assert not await pools.prolong("default", "a:1", 60)
    await pools.unlock("default", "a:1")
    assert await pools.lock("default", "a:1", 60) == "b:2"
    await pools.unlock("default", "b:2")
    assert await pools.lock("default", "a:1", 60) == ""


async def test_each_learner_of_a_run_has_a_higher_epoch_and_a_lineage_of_its_own(
    scene: Scene,
) -> None:
    runs = scene.store.runs
    await scene.start(eta=9)
    first = scene.fencing_token
    await scene.trained(1)
    # Two starts that die before they commit anything are remembered, too.
    epochs = [await runs.acquire(RUN, lineage) for lineage in ("bbb", "bbb", "ccc")]
    assert epochs == [first + 1, first + 2, first + 3]
    assert await runs.lineages(RUN) == [("aaa", 0), ("bbb", 1), ("ccc", 1)]
    with pytest.raises(Fenced):
        await runs.update(RUN, epochs[0], {"step": 9})
    await runs.update(RUN, epochs[2], {"step": 2, "metrics": {"reward": 0.5}})
    run = await runs.get(RUN)
    assert run is not None
    assert (run.step, run.lineage, run.metrics) == (2, "ccc", {"reward": 0.5})


# --- the end of a run ---------------------------------------------------------------------------


async def test_a_run_that_ends_frees_all_it_holds(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    await scene.trained(1)
    groups = await scene.finished(3)
    await scene.plan(2, groups[:2])
    held = await scene.leased(2)
    await scene.store.runs.finish(
        RUN, "default", "cancelled", "on request", fencing_token=scene.fencing_token
    )
    assert await scene.returned() == [2, 3, 4, 5, 6]
    assert await scene.payloads() == []
    assert await scene.weight() == 0
    assert await scene.store.trajectories.plans(RUN) == {}
    assert not await scene.complete(held[0])
    assert not await scene.store.tasks.drop(RUN, held[1].attempt, "bad_reference", "")
    with pytest.raises(Fenced):
        await scene.commit(2)


async def test_a_learner_reads_no_groups_of_a_run_that_is_over(scene: Scene) -> None:
    """The learner notices by itself that the run has ended; until then its reads must not break."""
    await scene.start(batch=2, eta=9)
    await scene.finished(1)
    await scene.store.runs.finish(RUN, "default", "failed", "by someone else")
    assert await scene.store.trajectories.read(RUN, wait=0.001) == []
    assert await scene.store.trajectories.pending(RUN) == []


# --- a run that continues another ---------------------------------------------------------------


async def cancelled_after_one_step(scene: Scene) -> None:
    """Make a run with tasks 0 and 1 trained, 4 dropped, 2 held, 3 finished, 5 released."""
    await scene.start(rows=100, batch=2, eta=9)
    await scene.trained(1)
    two, three, four, five = await scene.leased(4)
    await scene.complete(three)
    await scene.store.tasks.drop(RUN, four.attempt, "bad_reference", "")
    await scene.store.tasks.release(RUN, [five.attempt])
    assert two.task == 2
    await scene.store.runs.set_state(RUN, "cancelled", "on request")


async def test_a_continued_run_starts_at_the_checkpoint_with_the_open_tasks_first(
    scene: Scene,
) -> None:
    await cancelled_after_one_step(scene)
    await scene.store.runs.submit(record("r2", batch=2, eta=9, resume_from=RUN))
    run = await scene.store.runs.get("r2")
    assert run is not None
    assert (run.committed_step, run.step, run.version) == (1, 1, 1)
    assert run.checkpoint == "checkpoints/1"
    scene.run = "r2"
    await scene.take_over("bbb")
    assert await scene.store.runs.lineages("r2") == [("aaa", 0), ("bbb", 1)]
    leases = await scene.leased(5)
    assert tasks(leases) == [2, 3, 5, 6, 7]
    assert [lease.position.index for lease in leases] == [2, 3, 5, 6, 7]


async def test_calls_for_the_ended_run_do_not_reach_the_run_that_continues_it(scene: Scene) -> None:
    await cancelled_after_one_step(scene)
    await scene.store.runs.submit(record("r2", batch=2, eta=9, resume_from=RUN))
    with pytest.raises(Fenced):
        await scene.commit(2)
    assert [row["end"] for row in await scene.ledger()] == ["trained", "dropped"]


async def test_a_run_can_be_continued_twice(scene: Scene) -> None:
    await cancelled_after_one_step(scene)
    for run in ("r2", "r3"):
        await scene.store.runs.submit(record(run, batch=2, eta=9, resume_from=RUN))
        scene.run = run
        assert await scene.returned() == [2, 3, 5]


async def test_a_continued_run_with_another_dataset_begins_at_its_first_row_and_ends_the_open_tasks(
    scene: Scene,
) -> None:
    await cancelled_after_one_step(scene)
    await scene.dataset(7, "other")
    await scene.store.runs.submit(record("r2", batch=2, eta=9, resume_from=RUN, dataset="other"))
    scene.run = "r2"
    assert await scene.ledger() == [
        {
            "end": "dropped",
            "reason": "cancelled",
            "detail": "run r1 used other rows",
            "tasks": '["2:0:100:2", "3:0:100:3", "5:0:100:5"]',
        }
    ]
    await scene.take_over("bbb")
    (lease,) = await scene.leased(1)
    assert (lease.task, lease.position.rows, lease.position.index) == (6, 7, 0)


async def test_only_an_ended_run_is_continued(scene: Scene) -> None:
    await scene.start()
    fencing_token = scene.fencing_token
    with pytest.raises(StillRunning, match="run r1 is running: cancel it"):
        await scene.store.runs.submit(record("r2", resume_from=RUN))
    await scene.store.runs.update(RUN, fencing_token, {"step": 1})
    assert await scene.store.runs.get("r2") is None


async def test_a_fork_of_a_run_that_trains_has_its_order_and_leaves_it_as_it_is(
    scene: Scene,
) -> None:
    await scene.start(rows=100, batch=2, eta=9)
    await scene.trained(1)
    await scene.trained(2)
    four, five, six, seven = await scene.leased(4)
    await scene.complete(five)
    await scene.store.tasks.drop(RUN, six.attempt, "bad_reference", "")
    await scene.store.tasks.release(RUN, [seven.attempt])
    before = await scene.store.ledger.generation(RUN)

    at = {"checkpoint": "checkpoints/1", "committed_step": 1, "step": 1, "version": 1}
    fork = record("fork", batch=2, eta=9, resume_from=RUN, is_fork=True, **at)
    await scene.store.runs.submit(fork)

    assert await scene.store.ledger.generation(RUN) == before
    # The run goes on under the same lease and token.
    await scene.complete(four)
    await scene.plan(3, await scene.store.trajectories.read(RUN, wait=1))
    await scene.commit(3)
    scene.run = "fork"
    # Tasks 2 and 3 were trained after step 1, and 4, 5 and 7 had not ended.
    assert await scene.returned() == [2, 3, 4, 5, 7]
    assert await scene.store.runs.lineages("fork") == [("aaa", 0)]
    await scene.take_over("bbb")
    leases = await scene.leased(6)
    assert tasks(leases) == [2, 3, 4, 5, 7, 8]
    found = await scene.store.ledger.audit("fork")
    assert (found.tasks, found.trained, found.dropped) == (9, 2, {"bad_reference": 1})
    assert (found.in_flight, found.problems, found.clean) == (6, [], True)
    assert (await scene.store.ledger.audit(RUN)).clean


# --- datasets of runs ---------------------------------------------------------------------------


async def test_every_live_run_learns_of_new_rows_and_none_forgets_them(scene: Scene) -> None:
    await scene.start(rows=10)
    await scene.store.runs.submit(record("over"))
    await scene.store.runs.fail("over", "")
    grown, _ = await scene.store.datasets.append("d", segment(5))
    assert grown.rows == 15
    before = grown.model_copy(update={"rows": 10})
    await scene.store.datasets.grow_run(RUN, before)
    rows = [await scene.raw.hget(run_key(run, "order"), "dataset_rows") for run in (RUN, "over")]
    assert rows == [b"15", b"10"]
    with pytest.raises(KeyError):
        await scene.store.datasets.append("nobody", segment(1))
