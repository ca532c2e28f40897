"""Groups from the stream into a checkpoint: read, planned, requeued, committed."""

from typing import Any

import pytest
from redis.asyncio import Redis

from services.store import Fenced, PlanStands, Unplanned
from services.store.keys import run_key
from tests.integration.store.scene import RUN, Scene, tasks

# --- read ---------------------------------------------------------------------------------------


async def test_groups_are_read_once_and_stay_pending_until_a_commit(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    first = await scene.finished(2)
    assert [group.task for group in first] == ["0:0:100:0", "1:0:100:1"]
    await scene.plan(1, first)
    second = await scene.finished(2)
    assert [group.task for group in second] == ["2:0:100:2", "3:0:100:3"]
    assert await scene.store.trajectories.pending(RUN) == first + second
    await scene.commit(1)
    assert await scene.store.trajectories.pending(RUN) == second


@pytest.mark.parametrize("lost", [0, 1], ids=["before one that came", "after one that came"])
async def test_groups_whose_reply_was_lost_come_once_there_are_no_new_ones(
    scene: Scene, raw: Redis, lost: int
) -> None:
    """Redis counts a group as delivered once it has sent it, whether it arrived or not, and whether
    to this learner or to a replaced one."""
    await scene.start(batch=2, eta=9)
    found = []
    for task in range(2):
        (lease,) = await scene.leased(1)
        assert await scene.complete(lease)
        if task == lost:
            stream: dict[Any, Any] = {run_key(RUN, "groups"): ">"}
            assert await raw.xreadgroup("learner", "rank0", stream)
        else:
            found += await scene.store.trajectories.read(RUN, wait=1)
    again = await scene.store.trajectories.read(RUN, wait=0.001)
    assert [group.task for group in again] == ["0:0:100:0", "1:0:100:1"]
    assert found == [again[1 - lost]]


async def test_a_read_that_finds_new_groups_is_one_call(scene: Scene, raw: Redis) -> None:
    await scene.start(batch=2, eta=9)
    for lease in await scene.leased(2):
        assert await scene.complete(lease)

    async def reads() -> int:
        said = await raw.info("commandstats")
        return int(said.get("cmdstat_xreadgroup", {"calls": 0})["calls"])

    before = await reads()
    assert len(await scene.store.trajectories.read(RUN, wait=1)) == 2
    assert await reads() == before + 1


async def test_pending_groups_are_read_page_by_page(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.store.work.trajectories.READ", 2)
    await scene.start(batch=5, eta=9)
    for lease in await scene.leased(5):
        await scene.complete(lease)
    found = [g for _ in range(3) for g in await scene.store.trajectories.read(RUN, wait=1)]
    assert len(found) == 5
    assert await scene.store.trajectories.pending(RUN) == found


async def test_a_missing_payload_is_read_as_none(scene: Scene) -> None:
    await scene.start(eta=9)
    await scene.finished(1)
    assert await scene.store.trajectories.payloads(RUN, []) == []
    assert await scene.store.trajectories.payloads(RUN, [0, 7]) == [b"group", None]


# --- plan ---------------------------------------------------------------------------------------


async def test_a_plan_is_recorded_once_and_read_back_verbatim(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    one, two, three, four = await scene.finished(4)
    pairs = await scene.plan(1, [two, one])
    assert await scene.plan(1, [two, one]) == pairs
    with pytest.raises(PlanStands, match="step 1 of run r1 has another plan"):
        await scene.plan(1, [three, four])
    assert await scene.store.trajectories.plans(RUN) == {1: pairs}


async def test_a_plan_outlives_its_learner_but_not_its_commit(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    groups = await scene.finished(4)
    first = await scene.plan(1, groups[:2])
    second = await scene.plan(2, groups[2:])
    await scene.take_over("bbb")
    assert await scene.store.trajectories.plans(RUN) == {1: first, 2: second}
    await scene.commit(1)
    assert await scene.store.trajectories.plans(RUN) == {2: second}
    with pytest.raises(PlanStands):
        await scene.plan(1, groups[:2])


# --- stale groups -------------------------------------------------------------------------------


async def test_a_stale_group_is_requeued_and_deleted(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    stale, fresh = await scene.finished(2, b"12345")
    assert (
        await scene.store.trajectories.requeue(RUN, scene.fencing_token, [stale.entry], limit=3)
        == 0
    )
    assert await scene.returned() == [0]
    assert await scene.payloads() == [b"1"]
    assert await scene.weight() == 5
    assert await scene.store.trajectories.pending(RUN) == [fresh]
    assert (await scene.raw.xpending(run_key(RUN, "groups"), "learner"))["pending"] == 1
    # Its attempt has ended: the same entry again changes nothing.
    assert (
        await scene.store.trajectories.requeue(RUN, scene.fencing_token, [stale.entry], limit=3)
        == 0
    )
    assert await scene.returned() == [0]


async def test_a_task_that_was_stale_three_times_ends_as_too_slow(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    dropped = []
    for _ in range(3):
        (group,) = await scene.finished(1)
        assert group.task == "0:0:100:0"
        back = await scene.store.trajectories.requeue(
            RUN, scene.fencing_token, [group.entry], limit=3
        )
        dropped.append(back)
    assert dropped == [0, 0, 1]
    assert [(row["reason"], row["tasks"]) for row in await scene.ledger()] == [
        ("too_slow", '["0:0:100:0"]')
    ]
    assert await scene.tries() == {}
    assert tasks(await scene.leased(1)) == [1]


async def test_a_plan_with_an_unreadable_group_is_dropped_and_its_other_groups_wait(
    scene: Scene,
) -> None:
    await scene.start(batch=2, eta=9)
    bad, good = await scene.finished(2)
    for time in (1, 2, 3):
        await scene.plan(1, [bad, good])
        for entry, step in ((bad.entry, 1), (bad.entry, 1), ("1-1", 7)):
            # The second call repeats one whose reply was lost.
            await scene.store.trajectories.requeue(
                RUN,
                scene.fencing_token,
                [entry],
                limit=3,
                cause="unreadable",
                detail="its payload is gone",
                step=step,
            )
        assert await scene.store.trajectories.plans(RUN) == {}
        assert await scene.store.trajectories.pending(RUN) == [good]
        assert (await scene.store.ledger.audit(RUN)).clean
        if time < 3:
            (bad,) = await scene.finished(1)
    assert [(row["reason"], row["detail"]) for row in await scene.ledger()] == [
        ("unreadable", "its payload is gone")
    ]


# --- commit -------------------------------------------------------------------------------------


async def test_a_commit_acknowledges_deletes_and_writes_the_ledger(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    groups = await scene.finished(5, b"12345")
    await scene.plan(1, [groups[1], groups[0]])
    await scene.plan(2, [groups[3], groups[2]])
    assert await scene.commit(2) == 4
    assert await scene.payloads() == [b"4"]
    assert await scene.weight() == 5
    assert await scene.raw.xlen(run_key(RUN, "groups")) == 1
    assert await scene.store.trajectories.pending(RUN) == [groups[4]]
    assert (await scene.raw.xpending(run_key(RUN, "groups"), "learner"))["pending"] == 1
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert (run.committed_step, run.checkpoint) == (2, "checkpoints/2")
    tags = '["aaa:0","aaa:0"]'
    assert await scene.ledger() == [
        {
            "end": "trained",
            "step": step,
            "lineage": "aaa",
            "planned": "aaa",
            "tasks": drawn,
            "oldest": tags,
        }
        for step, drawn in (
            ("1", '["1:0:100:1","0:0:100:0"]'),
            ("2", '["3:0:100:3","2:0:100:2"]'),
        )
    ]


async def test_a_commit_repeated_changes_nothing(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    await scene.trained(1)
    assert await scene.commit(1) == 0
    assert len(await scene.ledger()) == 1


async def test_the_current_checkpoint_never_gets_older(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    await scene.trained(1)
    await scene.trained(2)
    assert await scene.commit(1) == 0
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert (run.committed_step, run.checkpoint) == (2, "checkpoints/2")


async def test_a_checkpoint_with_a_batch_that_was_never_planned_is_refused(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    groups = await scene.finished(2)
    await scene.plan(1, groups)
    with pytest.raises(Unplanned, match="covers step 2, which has no plan"):
        await scene.commit(2)
    assert await scene.ledger() == []
    assert await scene.store.trajectories.pending(RUN) == groups


async def test_a_supervised_run_commits_without_plans(scene: Scene) -> None:
    await scene.start(kind="sft")
    assert await scene.commit(500) == 0
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert run.committed_step == 500


async def test_a_commit_forgets_how_often_its_tasks_failed(scene: Scene) -> None:
    await scene.start(batch=1, eta=9)
    (lease,) = await scene.leased(1)
    await scene.store.tasks.release(RUN, [lease.attempt], cause="refused")
    (stale,) = await scene.finished(1)
    await scene.store.trajectories.requeue(RUN, scene.fencing_token, [stale.entry], limit=3)
    assert await scene.tries() == {b"0": b'{"refused":1,"stale":1}'}
    await scene.trained(1, 1)
    assert await scene.tries() == {}


# --- fencing ------------------------------------------------------------------------------------


async def test_a_replaced_learner_can_change_nothing(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    groups = await scene.finished(4)
    await scene.plan(1, groups[:2])
    old = scene.fencing_token
    await scene.take_over("bbb")
    assert scene.fencing_token == old + 1
    scene.fencing_token, new = old, scene.fencing_token
    entries = [group.entry for group in groups]
    store = scene.store
    for refused in (
        store.trajectories.plan(RUN, old, 2, [(groups[2].entry, groups[2].task)]),
        store.trajectories.commit(RUN, old, "aaa", 1, "checkpoints/1"),
        store.trajectories.requeue(RUN, old, entries, limit=3),
        store.weights.publish(old, scene.manifest(1), keep=64),
        store.runs.update(RUN, old, {"step": 1}),
        store.runs.set_state(RUN, "failed", "", fencing_token=old),
        store.runs.finish(RUN, "default", "failed", "", fencing_token=old),
    ):
        with pytest.raises(Fenced, match="another learner has taken over run r1"):
            await refused
    run = await store.runs.get(RUN)
    assert run is not None
    assert (run.state, run.committed_step, run.step, run.version) == ("running", 0, 0, 0)
    assert await scene.ledger() == []
    scene.fencing_token = new
    assert await scene.commit(1) == 2


async def test_groups_in_flight_are_counted_by_the_version_they_were_granted_for(
    scene: Scene,
) -> None:
    await scene.start(batch=4, eta=9)
    done, lapsed, _, dropped, returned = await scene.leased(5)
    await scene.leased(2, version=1)
    in_flight = scene.store.trajectories.in_flight
    assert await in_flight(RUN, "aaa") == {0: 5, 1: 2}
    assert await in_flight(RUN, "bbb") == {}
    assert await scene.complete(done)
    await scene.lapse(lapsed)
    assert await scene.store.tasks.drop(RUN, dropped.attempt, "too_long", "")
    await scene.store.tasks.release(RUN, [returned.attempt])
    assert await in_flight(RUN, "aaa") == {0: 1, 1: 2}
