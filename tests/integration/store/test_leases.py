"""Leases: who gets which draw, how many, for how long, and how an attempt ends."""

import pytest

from services.contracts.dataset import Position
from services.contracts.records import RunState
from services.store.keys import run_key
from tests.integration.store.scene import Scene, draws, same_ids, segment

# --- admission ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("eta", "batches"), [(0, 1), (1, 2), (4, 5)])
async def test_a_worker_at_version_0_may_run_eta_batches_ahead(
    scene: Scene, eta: int, batches: int
) -> None:
    await scene.start(eta=eta, batch=2)
    assert draws((await scene.lease(100)).leases) == list(range(2 * batches))
    assert (await scene.lease(1)).refusal == "admission"


async def test_finished_groups_count_until_a_commit_and_trained_ones_after_it(scene: Scene) -> None:
    await scene.start(eta=0, batch=2)
    groups = await scene.finished(2)
    assert (await scene.lease(1)).refusal == "admission"
    await scene.plan(1, groups)
    # Trained and published, not committed: the stream's 2 + 2 more are version 1's 2 batches.
    await scene.publish(1)
    assert draws(await scene.leased(2)) == [2, 3]
    assert (await scene.lease(1)).refusal == "admission"
    await scene.commit(1)
    assert (await scene.lease(1)).refusal == "admission"
    assert draws((await scene.lease(9, version=2)).leases) == [4, 5]


async def test_no_more_draws_than_the_run_has_steps_for(scene: Scene) -> None:
    await scene.start(eta=5, batch=2, max_steps=3)
    assert len((await scene.lease(100)).leases) == 6


async def test_a_dropped_draw_is_replaced_by_a_further_one(scene: Scene) -> None:
    await scene.start(eta=0, batch=2, max_steps=1)
    first, _ = await scene.leased(2)
    await scene.store.prompts.drop("r1", first.attempt, "bad_reference", "no number")
    assert draws(await scene.leased(1)) == [2]


async def test_a_worker_of_a_dead_lineage_gets_nothing(scene: Scene) -> None:
    await scene.start()
    await scene.take_over("bbb")
    assert (await scene.lease(1, lineage="aaa")).refusal == "lineage"
    assert len((await scene.lease(1)).leases) == 1


@pytest.mark.parametrize("state", ["starting", "paused", "cancelled"])
async def test_a_run_that_does_not_run_gives_nothing(scene: Scene, state: str) -> None:
    await scene.start()
    await scene.store.runs.set_state("r1", state, "")
    assert (await scene.lease(1)).refusal == "state"


async def test_a_run_that_is_to_be_cancelled_gives_nothing(scene: Scene) -> None:
    await scene.start()
    await scene.store.runs.take("default")
    await scene.store.runs.cancel("r1")
    assert (await scene.lease(1)).refusal == "state"


async def test_a_midtraining_run_and_a_missing_one_give_nothing(scene: Scene) -> None:
    await scene.start(kind="midtrain")
    assert (await scene.lease(1)).refusal == "state"
    scene.run = "nobody"
    assert (await scene.lease(1)).refusal == "state"


async def test_asking_for_none_gets_none(scene: Scene) -> None:
    await scene.start()
    granted = await scene.lease(0)
    assert (granted.refusal, granted.leases) == ("", [])


# --- bytes --------------------------------------------------------------------------------------


async def test_what_runs_ahead_stays_within_the_byte_budget(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=1000)
    assert len((await scene.lease(50, reserve_bytes=200)).leases) == 5
    assert (await scene.lease(1, reserve_bytes=200)).refusal == "bytes"


async def test_a_small_group_frees_what_it_did_not_need(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=1000)
    first, *_ = await scene.leased(5, reserve_bytes=200)
    await scene.complete(first, b"x" * 10)
    # 10 + 4 * 200 = 810 used: 190 are left.
    assert (await scene.lease(1, reserve_bytes=200)).refusal == "bytes"
    assert len((await scene.lease(1, reserve_bytes=190)).leases) == 1


async def test_a_batch_becomes_whole_however_small_the_budget(scene: Scene) -> None:
    await scene.start(eta=9, batch=4, budget=100)
    assert len((await scene.lease(50, reserve_bytes=1000)).leases) == 4
    assert (await scene.lease(1, reserve_bytes=1000)).refusal == "bytes"


async def test_the_batch_after_a_planned_one_becomes_whole_too(scene: Scene) -> None:
    await scene.start(eta=9, batch=2, budget=100)
    await scene.plan(1, await scene.finished(2, b"x" * 60))
    # 120 of 100 bytes wait for a commit that covers step 1: the learner may need step 2 for it.
    assert len((await scene.lease(50, reserve_bytes=1000)).leases) == 2
    assert (await scene.lease(1, reserve_bytes=1000)).refusal == "bytes"


# --- order --------------------------------------------------------------------------------------


async def test_draws_follow_the_order_and_wrap_into_the_next_permutation(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    leases = await scene.leased(7)
    assert draws(leases) == [0, 1, 2, 3, 4, 5, 6]
    assert [lease.position for lease in leases[2:5]] == [
        Position(epoch=0, rows=3, index=2),
        Position(epoch=1, rows=3, index=0),
        Position(epoch=1, rows=3, index=1),
    ]


async def test_rows_appended_later_join_the_next_epoch(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    await scene.leased(2)
    await scene.store.datasets.append("d", segment(2))
    assert [lease.position for lease in await scene.leased(3)] == [
        Position(epoch=0, rows=3, index=2),
        Position(epoch=1, rows=5, index=0),
        Position(epoch=1, rows=5, index=1),
    ]


async def test_returned_draws_go_out_first_in_the_runs_order(scene: Scene) -> None:
    await scene.start(eta=9)
    leases = await scene.leased(5)
    for number in (3, 1, 2):
        await scene.store.prompts.give_back("r1", [leases[number].attempt])
    again = await scene.leased(4)
    assert draws(again) == [1, 2, 3, 5]
    assert again[0].position == leases[1].position
    assert not {lease.attempt for lease in again} & {lease.attempt for lease in leases}


async def test_lapsed_draws_go_out_first_in_the_runs_order(scene: Scene) -> None:
    await scene.start(eta=9)
    leases = await scene.leased(4)
    await scene.lapse(leases[2], leases[0], leases[1])
    assert draws(await scene.leased(4)) == [0, 1, 2, 4]


async def test_a_lease_whose_reply_was_lost_is_the_same_lease_when_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a call that broke after Redis ran it, with the same attempt ids."""
    await scene.start(eta=9)
    for _ in range(2):
        monkeypatch.setattr("services.store.prompts.secrets.token_hex", same_ids())
        assert draws((await scene.lease(3)).leases) == [0, 1, 2]
    assert await scene.raw.hlen(run_key("r1", "held")) == 3
    monkeypatch.undo()
    assert draws(await scene.leased(1)) == [3]


# --- data that has nothing left -----------------------------------------------------------------


async def drop_all(scene: Scene, count: int) -> None:
    for lease in await scene.leased(count):
        await scene.store.prompts.drop("r1", lease.attempt, "bad_reference", "")


async def test_data_of_which_every_row_was_dropped_fails_the_run(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    await drop_all(scene, 6)
    assert (await scene.lease(1)).refusal == "exhausted"
    run = await scene.store.runs.get("r1")
    assert run is not None
    assert run.state is RunState.FAILED
    assert "nothing left to give" in run.reason
    assert (await scene.lease(1)).refusal == "state"


async def test_one_good_row_keeps_a_run_going(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    for _ in range(4):
        await drop_all(scene, 2)
        await scene.complete((await scene.leased(1))[0])
    assert (await scene.lease(1)).refusal == ""


async def test_draws_in_flight_may_still_be_good(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    (good,) = await scene.leased(1)
    await drop_all(scene, 6)
    await drop_all(scene, 1)
    assert await scene.complete(good)
    assert (await scene.lease(1)).refusal == ""


async def test_draws_that_wait_to_go_out_again_may_still_be_good(scene: Scene) -> None:
    await scene.start(rows=3, eta=9)
    (good,) = await scene.leased(1)
    await drop_all(scene, 6)
    await scene.store.prompts.give_back("r1", [good.attempt])
    assert draws(await scene.leased(1)) == [0]


# --- renew, give back, drop ---------------------------------------------------------------------


async def test_renew_moves_what_is_held_and_names_what_is_lost(scene: Scene) -> None:
    await scene.start(eta=9)
    kept, lost = await scene.leased(2, ttl=0.0)
    await scene.store.prompts.give_back("r1", [lost.attempt])
    attempts = [kept.attempt, lost.attempt, "unknown"]
    assert await scene.store.prompts.renew("r1", attempts, 60) == [lost.attempt, "unknown"]
    assert draws(await scene.leased(2)) == [1, 2]
    assert await scene.store.prompts.renew("r1", [], 60) == []


async def test_an_attempt_whose_draw_went_to_another_cannot_be_renewed(scene: Scene) -> None:
    await scene.start(eta=9)
    (slow,) = await scene.leased(1, ttl=0.0)
    (quick,) = await scene.leased(1)
    assert quick.draw == slow.draw
    assert await scene.store.prompts.renew("r1", [slow.attempt], 60) == [slow.attempt]
    assert not await scene.complete(slow)
    assert await scene.complete(quick)


async def test_a_late_completion_is_refused_and_its_draw_goes_out_again(scene: Scene) -> None:
    await scene.start(eta=9)
    (late,) = await scene.leased(1, ttl=0.0)
    assert not await scene.complete(late)
    assert await scene.payloads() == []
    assert await scene.returned() == [0]


async def test_giving_back_twice_is_giving_back_once(scene: Scene) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    for _ in range(2):
        assert await scene.store.prompts.give_back("r1", [lease.attempt]) == 0
    assert await scene.returned() == [0]


async def test_a_draw_that_fails_three_times_for_one_cause_ends(scene: Scene) -> None:
    await scene.start(eta=9)

    async def fail(cause: str) -> int:
        (lease,) = await scene.leased(1)
        assert lease.draw == 0
        return await scene.store.prompts.give_back("r1", [lease.attempt], cause=cause, limit=3)

    causes = ["verifier_error", "refused", "verifier_error", "", "verifier_error"]
    assert [await fail(cause) for cause in causes] == [0, 0, 0, 0, 1]
    assert [(row["end"], row["reason"], row["draws"]) for row in await scene.ledger()] == [
        ("dropped", "verifier_error", '["0:0:100:0"]')
    ]
    assert await scene.tries() == {}
    assert draws(await scene.leased(1)) == [1]


@pytest.mark.parametrize("reason", ["bad_reference", "verifier_error", "too_long", "cancelled"])
async def test_a_drop_ends_a_held_draw_once_with_its_reason(scene: Scene, reason: str) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    assert await scene.store.prompts.drop("r1", lease.attempt, reason, "row 7 says why")
    assert not await scene.store.prompts.drop("r1", lease.attempt, reason, "row 7 says why")
    assert await scene.store.prompts.give_back("r1", [lease.attempt]) == 0
    assert not await scene.complete(lease)
    assert await scene.ledger() == [
        {
            "end": "dropped",
            "reason": reason,
            "detail": "row 7 says why",
            "draws": '["0:0:100:0"]',
        }
    ]
    assert await scene.returned() == []


async def test_a_drop_forgets_how_often_the_draw_failed(scene: Scene) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    await scene.store.prompts.give_back("r1", [lease.attempt], cause="refused")
    assert await scene.tries() == {b"0": b'{"refused":1}'}
    (lease,) = await scene.leased(1)
    await scene.store.prompts.drop("r1", lease.attempt, "bad_reference", "")
    assert await scene.tries() == {}


# --- complete -----------------------------------------------------------------------------------


async def test_a_completed_group_stands_in_the_stream_once_with_its_payload_beside_it(
    scene: Scene,
) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    assert await scene.complete(lease, b"0123456789")
    assert not await scene.complete(lease, b"0123456789")
    (group,) = await scene.store.trajectories.read("r1", wait=1)
    assert (group.draw, group.min_version, group.lineage, group.bytes) == (
        "0:0:100:0",
        0,
        "aaa",
        10,
    )
    assert await scene.store.trajectories.payloads("r1", [0]) == [b"0123456789"]
    assert await scene.weight() == 10
    assert await scene.raw.zcard(run_key("r1", "attempts")) == 0
    assert await scene.raw.hlen(run_key("r1", "held")) == 0
