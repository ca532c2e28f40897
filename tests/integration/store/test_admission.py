"""Leases: how many tasks a worker gets, which ones, and why it is refused."""

import pytest

from services.contracts.records import RunState
from services.contracts.rows.task import TaskPosition
from services.store.errors import StreamFull
from services.store.keys import run_key
from services.store.work.tasks import Lease
from tests.integration.store.scene import MINUTE, Scene, record, same_ids, segment, tasks

# --- admission ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("eta", "batches"), [(0, 1), (1, 2), (4, 5)])
async def test_a_worker_at_version_0_may_run_eta_batches_ahead(
    scene: Scene, eta: int, batches: int
) -> None:
    await scene.start(eta=eta, batch=2)
    assert tasks((await scene.lease(100)).leases) == list(range(2 * batches))
    assert (await scene.lease(1)).refusal == "admission"


async def test_finished_groups_count_until_a_commit_and_trained_ones_after_it(scene: Scene) -> None:
    await scene.start(eta=0, batch=2)
    groups = await scene.finished(2)
    assert (await scene.lease(1)).refusal == "admission"
    await scene.plan(1, groups)
    # Trained and published, not committed: the stream's 2 + 2 more are version 1's 2 batches.
    await scene.publish(1)
    assert tasks(await scene.leased(2)) == [2, 3]
    assert (await scene.lease(1)).refusal == "admission"
    await scene.commit(1)
    assert (await scene.lease(1)).refusal == "admission"
    assert tasks((await scene.lease(9, version=2)).leases) == [4, 5]


async def test_tasks_are_leased_only_for_the_runs_steps(scene: Scene) -> None:
    await scene.start(eta=5, batch=2, max_steps=3)
    assert len((await scene.lease(100)).leases) == 6


async def test_a_dropped_task_is_replaced_by_a_further_one(scene: Scene) -> None:
    await scene.start(eta=0, batch=2, max_steps=1)
    first, _ = await scene.leased(2)
    await scene.store.tasks.drop("r1", first.attempt, "bad_reference", "no number")
    assert tasks(await scene.leased(1)) == [2]


async def test_a_worker_of_a_dead_lineage_gets_no_lease(scene: Scene) -> None:
    await scene.start()
    await scene.take_over("bbb")
    assert (await scene.lease(1, lineage="aaa")).refusal == "lineage"
    assert len((await scene.lease(1)).leases) == 1


@pytest.mark.parametrize("state", ["starting", "paused", "cancelled"])
async def test_only_a_running_run_grants_leases(scene: Scene, state: str) -> None:
    await scene.start()
    await scene.store.runs.set_state("r1", state, "")
    assert (await scene.lease(1)).refusal == "state"


async def test_a_run_that_was_asked_to_pause_grants_no_lease_before_its_learner_pauses(
    scene: Scene,
) -> None:
    await scene.start()
    running, edits = [RunState.RUNNING], scene.store.run_edits
    assert await edits.add("r1", [], {"paused_by": "ann"}, running, {"by": "ann"}, "paused") == ""
    assert (await scene.lease(1)).refusal == "state"
    assert (await edits.add("r1", [], {"paused_by": ""}, running, {"by": "ann"}, "resumed")) == ""
    assert len((await scene.lease(1)).leases) == 1
    kinds = [event.kind for event in await scene.store.events.read("r1", "0")]
    assert kinds[-2:] == ["paused", "resumed"]


async def test_a_cancelling_run_grants_no_lease(scene: Scene) -> None:
    await scene.start()
    await scene.store.runs.take("default")
    await scene.store.runs.cancel("r1")
    assert (await scene.lease(1)).refusal == "state"


async def test_a_supervised_run_and_a_missing_one_grant_no_lease(scene: Scene) -> None:
    await scene.start(kind="sft")
    assert (await scene.lease(1)).refusal == "state"
    scene.run = "nobody"
    assert (await scene.lease(1)).refusal == "state"


async def test_a_lease_of_0_tasks_is_empty(scene: Scene) -> None:
    await scene.start()
    granted = await scene.lease(0)
    assert (granted.refusal, granted.leases) == ("", [])


# --- bytes --------------------------------------------------------------------------------------


async def test_bytes_do_not_limit_leases_while_the_learner_lacks_groups(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=1000)
    assert len((await scene.lease(50, reserve_bytes=5000)).leases) == 20


async def test_groups_in_flight_must_fit_once_the_next_batch_is_ready(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=1000)
    await scene.finished(2, b"x" * 200)
    # 400 of 1,000 bytes: three more like these.
    assert len((await scene.lease(50, reserve_bytes=10_000)).leases) == 3
    assert (await scene.lease(1, reserve_bytes=10_000)).refusal == "bytes"


async def test_a_lease_counts_with_the_mean_size_of_the_newest_groups(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=1000)
    first, *others = await scene.leased(4)
    await scene.complete(first, b"x" * 100)
    # Each group counts 1/32: 100 + (420 - 100) / 32 = 110, so 4 fit after 520 bytes.
    await scene.complete(others[0], b"x" * 420)
    assert len((await scene.lease(50)).leases) == 2


# --- room for finished groups -------------------------------------------------------------------


async def full(scene: Scene) -> list[Lease]:
    """Return the leases of 2 more groups of a run at version 0 with a whole batch, 20 bytes short
    of its 1,000."""
    await scene.start(eta=1, batch=2, budget=1000)
    leases = await scene.leased(4)
    for lease in leases[:2]:
        assert await scene.complete(lease, b"x" * 490)
    return leases[2:]


async def test_a_group_waits_in_its_worker_while_the_stream_is_full(scene: Scene) -> None:
    late, small = await full(scene)
    with pytest.raises(StreamFull):
        await scene.complete(late, b"x" * 21)
    assert await scene.complete(small, b"x" * 20)
    assert not await scene.stream_takes(late, 21)

    # The lease is held, and renewed like any other.
    assert await scene.store.tasks.renew("r1", [late.attempt], MINUTE) == []
    groups = await scene.store.trajectories.pending("r1")
    groups += await scene.store.trajectories.read("r1", wait=0)
    await scene.plan(1, groups[:2])
    assert not await scene.stream_takes(late, 21), "the learner has a batch to train"
    await scene.publish(1)
    # The learner waits for a batch, and has one of its groups.
    scene.version = 0
    assert await scene.stream_takes(late, 21)
    assert await scene.complete(late, b"x" * 21)


async def test_the_stream_takes_a_group_that_no_later_batch_may_train(scene: Scene) -> None:
    late, _ = await full(scene)
    with pytest.raises(StreamFull):
        await scene.complete(late, b"x" * 21)
    # A group of version 0 at η = 1 is trained at version 1 at the latest.
    await scene.publish(1)
    assert await scene.stream_takes(late, 21)
    scene.version = 0
    assert await scene.complete(late, b"x" * 21)


async def test_the_learner_does_not_wait_for_groups_that_wait_for_it(scene: Scene) -> None:
    late, _ = await full(scene)
    assert await scene.store.trajectories.in_flight("r1", "aaa") == {0: 2}
    with pytest.raises(StreamFull):
        await scene.complete(late, b"x" * 21)
    assert await scene.store.trajectories.in_flight("r1", "aaa") == {0: 1}
    # The stream takes a group at once when its last batch is next.
    await scene.publish(1)
    assert await scene.store.trajectories.in_flight("r1", "aaa") == {0: 2}


async def test_a_released_group_that_waited_for_the_stream_is_leased_again(scene: Scene) -> None:
    late, _ = await full(scene)
    with pytest.raises(StreamFull):
        await scene.complete(late, b"x" * 21)
    await scene.store.tasks.release("r1", [late.attempt])
    assert await scene.stream_takes(late, 21), "it learns that the lease is gone"
    assert not await scene.complete(late, b"x" * 21)
    assert await scene.store.tasks.renew("r1", [late.attempt], MINUTE) == [late.attempt]
    assert late.task in await scene.returned()


async def test_a_batch_becomes_whole_however_small_the_budget(scene: Scene) -> None:
    await scene.start(eta=9, batch=4, budget=100)
    leases = await scene.leased(5)
    for lease in leases[:4]:
        assert await scene.complete(lease, b"x" * 60)
    with pytest.raises(StreamFull):
        await scene.complete(leases[4], b"x" * 60)


async def test_the_batch_after_a_planned_one_becomes_whole_too(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=100)
    await scene.plan(1, await scene.finished(2, b"x" * 60))
    await scene.publish(1)
    # 120 of 100 bytes wait for a commit that covers step 1: the learner may need step 2 for it.
    assert len(await scene.finished(2, b"x" * 60)) == 2


# --- order --------------------------------------------------------------------------------------


async def test_tasks_follow_the_order_and_wrap_into_the_next_permutation(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    leases = await scene.leased(7)
    assert tasks(leases) == [0, 1, 2, 3, 4, 5, 6]
    assert [str(lease.position) for lease in leases[2:5]] == ["2:0:3:2", "3:1:3:0", "4:1:3:1"]


async def test_rows_appended_later_join_the_next_epoch(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    await scene.leased(2)
    await scene.store.datasets.append("d", segment(2))
    leases = await scene.leased(3)
    assert [lease.position for lease in leases] == [
        TaskPosition(position=2, epoch=0, rows=3, index=2),
        TaskPosition(position=3, epoch=1, rows=5, index=0),
        TaskPosition(position=4, epoch=1, rows=5, index=1),
    ]


async def test_returned_tasks_are_leased_first_in_the_runs_order(scene: Scene) -> None:
    await scene.start(eta=9)
    leases = await scene.leased(5)
    for number in (3, 1, 2):
        await scene.store.tasks.release("r1", [leases[number].attempt])
    again = await scene.leased(4)
    assert tasks(again) == [1, 2, 3, 5]
    assert again[0].position == leases[1].position
    assert not {lease.attempt for lease in again} & {lease.attempt for lease in leases}


async def test_lapsed_tasks_are_leased_first_in_the_runs_order(scene: Scene) -> None:
    await scene.start(eta=9)
    leases = await scene.leased(4)
    await scene.lapse(leases[2], leases[0], leases[1])
    assert tasks(await scene.leased(4)) == [0, 1, 2, 4]


async def test_a_repeated_lease_gets_the_same_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a call that broke after Redis ran it, with the same attempt ids."""
    await scene.start(eta=9)
    for _ in range(2):
        monkeypatch.setattr("services.store.work.tasks.secrets.token_hex", same_ids())
        assert tasks((await scene.lease(3)).leases) == [0, 1, 2]
    assert await scene.raw.hlen(run_key("r1", "held")) == 3
    monkeypatch.undo()
    assert tasks(await scene.leased(1)) == [3]


# --- data that has nothing left -----------------------------------------------------------------


async def drop_all(scene: Scene, count: int) -> None:
    for lease in await scene.leased(count):
        detail = f"dataset row {lease.position.index}: no number"
        await scene.store.tasks.drop("r1", lease.attempt, "bad_reference", detail)


async def test_a_run_fails_when_every_row_was_dropped(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    await drop_all(scene, 6)
    assert (await scene.lease(1)).refusal == "exhausted"
    run = await scene.store.runs.get("r1")
    assert run is not None
    assert run.state is RunState.FAILED
    assert "no row of the dataset is of use" in run.reason
    assert "the last one as bad_reference: dataset row 2: no number" in run.reason
    assert (await scene.lease(1)).refusal == "state"


async def test_one_good_row_keeps_a_run_going(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    for _ in range(4):
        await drop_all(scene, 2)
        await scene.complete((await scene.leased(1))[0])
    assert (await scene.lease(1)).refusal == ""


async def test_a_run_with_tasks_in_flight_is_not_exhausted(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    (good,) = await scene.leased(1)
    await drop_all(scene, 6)
    await drop_all(scene, 1)
    assert await scene.complete(good)
    assert (await scene.lease(1)).refusal == ""


async def test_a_run_with_returned_tasks_is_not_exhausted(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    (good,) = await scene.leased(1)
    await drop_all(scene, 6)
    await scene.store.tasks.release("r1", [good.attempt])
    assert tasks(await scene.leased(1)) == [0]


# --- filtered groups ----------------------------------------------------------------------------


async def filter_group(scene: Scene, count: int) -> None:
    for lease in await scene.leased(count):
        detail = f"dataset row {lease.position.index}: all its rewards are 0"
        assert await scene.store.tasks.filter_group("r1", lease.attempt, detail, 0.0)


async def test_a_filtered_group_frees_its_place_in_admission(scene: Scene) -> None:
    await scene.start(eta=0, batch=2, max_steps=1, max_filtered=10)
    for _ in range(3):
        await filter_group(scene, 2)
    assert tasks(await scene.leased(2)) == [6, 7]
    assert (await scene.lease(1)).refusal == "admission"


async def test_a_run_whose_groups_are_filtered_fails_with_the_reason(scene: Scene) -> None:
    # Batches of 2, with 2 filtered groups allowed for each: the limit is 4.
    await scene.start(rows=100, eta=9, batch=2, max_filtered=2)
    await scene.finished(1)
    await filter_group(scene, 4)
    await filter_group(scene, 1)
    assert (await scene.lease(1)).refusal == "filtered_group"
    run = await scene.store.runs.get("r1")
    assert run is not None
    assert run.state is RunState.FAILED
    assert run.reason.startswith(
        "too little to learn from: 5 groups were filtered while 1 of the 2 groups of a batch were "
        "finished, the last one as filtered_group: dataset row 5: all its rewards are 0. "
        "`headrace samples r1` shows answers"
    )
    assert "`headrace resume r1 --set KEY=VALUE`" in run.reason
    assert (await scene.lease(1)).refusal == "state"


async def test_each_finished_batch_resets_the_limit_of_filtered_groups(scene: Scene) -> None:
    await scene.start(rows=100, eta=9, batch=2, max_filtered=2)
    for _ in range(3):
        await filter_group(scene, 4)
        await scene.finished(2)
    await filter_group(scene, 5)
    assert (await scene.lease(1)).refusal == "filtered_group"


async def test_filtered_groups_do_not_exhaust_the_dataset(scene: Scene) -> None:
    # Twice through all rows and more: unusable rows would end the run here.
    await scene.start(rows=2, eta=9, batch=2, max_filtered=10)
    await filter_group(scene, 7)
    assert (await scene.lease(1)).refusal == ""


async def test_a_resumed_run_resets_the_limit_of_filtered_groups(scene: Scene) -> None:
    await scene.start(rows=100, eta=9, batch=2, max_filtered=2)
    await filter_group(scene, 5)
    assert (await scene.lease(1)).refusal == "filtered_group"
    await scene.store.runs.submit(record("r2", batch=2, eta=9, max_filtered=2, resume_from="r1"))
    scene.run = "r2"
    await scene.take_over("bbb")
    assert tasks(await scene.leased(4)) == [5, 6, 7, 8]
