"""Leases: how long they last, and how an attempt ends."""

import pytest

from services.contracts.groups.group_lengths import GroupLengths
from services.store.keys import run_key
from tests.integration.store.scene import Scene, tasks

# --- renew, release, drop -----------------------------------------------------------------------


async def test_renew_moves_held_deadlines_and_returns_lost_attempts(scene: Scene) -> None:
    await scene.start(eta=9)
    kept, lost = await scene.leased(2, ttl=0.0)
    await scene.store.tasks.release("r1", [lost.attempt])
    attempts = [kept.attempt, lost.attempt, "unknown"]
    assert await scene.store.tasks.renew("r1", attempts, 60) == [lost.attempt, "unknown"]
    assert tasks(await scene.leased(2)) == [1, 2]
    assert await scene.store.tasks.renew("r1", [], 60) == []


async def test_an_attempt_whose_task_went_to_another_cannot_be_renewed(scene: Scene) -> None:
    await scene.start(eta=9)
    (slow,) = await scene.leased(1, ttl=0.0)
    (quick,) = await scene.leased(1)
    assert quick.task == slow.task
    assert await scene.store.tasks.renew("r1", [slow.attempt], 60) == [slow.attempt]
    assert not await scene.complete(slow)
    assert await scene.complete(quick)


async def test_a_late_completion_is_refused_and_its_task_is_leased_again(scene: Scene) -> None:
    await scene.start(eta=9)
    (late,) = await scene.leased(1, ttl=0.0)
    assert not await scene.complete(late)
    assert await scene.payloads() == []
    assert await scene.returned() == [0]


async def test_a_repeated_release_changes_nothing(scene: Scene) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    for _ in range(2):
        assert await scene.store.tasks.release("r1", [lease.attempt]) == 0
    assert await scene.returned() == [0]


async def test_a_task_that_fails_three_times_for_one_cause_ends(scene: Scene) -> None:
    await scene.start(eta=9)

    async def fail(cause: str) -> int:
        (lease,) = await scene.leased(1)
        assert lease.task == 0
        return await scene.store.tasks.release(
            "r1",
            [lease.attempt],
            cause=cause,
            detail=f"{cause} of attempt {lease.attempt}",
            limit=3,
        )

    causes = ["verifier_error", "refused", "verifier_error", "", "verifier_error"]
    assert [await fail(cause) for cause in causes] == [0, 0, 0, 0, 1]
    (row,) = await scene.ledger()
    assert (row["end"], row["reason"], row["tasks"]) == (
        ("dropped", "verifier_error", '["0:0:100:0"]')
    )
    assert row["detail"].startswith("verifier_error of attempt ")
    assert await scene.tries() == {}
    assert tasks(await scene.leased(1)) == [1]


@pytest.mark.parametrize("reason", ["bad_reference", "verifier_error", "too_long", "cancelled"])
async def test_a_drop_ends_a_held_task_once_with_its_reason(scene: Scene, reason: str) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    assert await scene.store.tasks.drop("r1", lease.attempt, reason, "row 7 says why")
    assert not await scene.store.tasks.drop("r1", lease.attempt, reason, "row 7 says why")
    assert await scene.store.tasks.release("r1", [lease.attempt]) == 0
    assert not await scene.complete(lease)
    assert await scene.ledger() == [
        {
            "end": "dropped",
            "reason": reason,
            "detail": "row 7 says why",
            "tasks": '["0:0:100:0"]',
        }
    ]
    assert await scene.returned() == []


async def test_a_drop_forgets_how_often_the_task_failed(scene: Scene) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    await scene.store.tasks.release("r1", [lease.attempt], cause="refused")
    assert await scene.tries() == {b"0": b'{"refused":1}'}
    (lease,) = await scene.leased(1)
    await scene.store.tasks.drop("r1", lease.attempt, "bad_reference", "")
    assert await scene.tries() == {}


# --- filtered -------------------------------------------------------------------------------------


async def test_a_filtered_group_ends_its_task_once_and_is_counted_once(
    scene: Scene,
) -> None:
    await scene.start(eta=9, max_filtered=10)
    lease, other = await scene.leased(2)
    said = "dataset row 7: all its rewards are 1"
    assert await scene.store.tasks.filter_group("r1", lease.attempt, said, 1.0)
    assert not await scene.store.tasks.filter_group("r1", lease.attempt, said, 1.0)
    assert not await scene.store.tasks.drop("r1", lease.attempt, "too_long", "")
    assert not await scene.complete(lease)
    assert await scene.store.tasks.filter_group("r1", other.attempt, "", 0.25)
    assert [(row["end"], row["reason"], row["detail"]) for row in await scene.ledger()] == [
        ("dropped", "filtered_group", said),
        ("dropped", "filtered_group", ""),
    ]
    assert await scene.store.trajectories.filtered("r1") == (2, 1.25)
    assert (await scene.weight(), await scene.payloads(), await scene.returned()) == (0, [], [])


async def test_an_attempt_that_lost_its_task_cannot_filter_its_group(scene: Scene) -> None:
    await scene.start(eta=9, max_filtered=10)
    (slow,) = await scene.leased(1, ttl=0.0)
    (quick,) = await scene.leased(1)
    assert quick.task == slow.task
    assert not await scene.store.tasks.filter_group("r1", slow.attempt, "", 1.0)
    assert await scene.complete(quick)
    assert await scene.store.trajectories.filtered("r1") == (0, 0.0)


# --- complete -----------------------------------------------------------------------------------


async def test_a_completed_group_is_in_the_stream_once_with_its_payload(
    scene: Scene,
) -> None:
    await scene.start(eta=9)
    (lease,) = await scene.leased(1)
    assert await scene.complete(lease, b"0123456789")
    assert not await scene.complete(lease, b"0123456789")
    (group,) = await scene.store.trajectories.read("r1", wait=1)
    assert (group.task, group.min_version, group.lineage, group.bytes, group.lengths) == (
        "0:0:100:0",
        0,
        "aaa",
        10,
        GroupLengths(1, (1,)),
    )
    assert await scene.store.trajectories.payloads("r1", [0]) == [b"0123456789"]
    assert await scene.weight() == 10
    assert await scene.raw.zcard(run_key("r1", "attempts")) == 0
    assert await scene.raw.hlen(run_key("r1", "held")) == 0
