"""Leases: how long they last, and how an attempt ends."""

import pytest

from services.contracts.groups.group_lengths import GroupLengths
from services.store.keys import run_key
from services.store.work.tasks import Lease
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


# --- partials -----------------------------------------------------------------------------------


async def set_aside(scene: Scene, lease: Lease, oldest: str = "aaa:0") -> bool | None:
    return await scene.store.tasks.set_aside("r1", lease.attempt, oldest, b"begun")


async def test_a_partial_is_continued_by_the_next_attempt_and_goes_with_its_task(
    scene: Scene,
) -> None:
    await scene.start(eta=9)
    first, other = await scene.leased(2)
    assert await set_aside(scene, first)
    assert await set_aside(scene, first) is None
    assert await scene.weight() == len(b"begun")

    (again,) = await scene.leased(1)
    assert (again.task, again.partial, other.partial) == (0, "continued", "")
    assert await scene.store.tasks.partial("r1", 0) == b"begun"
    assert not await scene.complete(first)
    # A worker that is killed leaves the partial to the next one.
    await scene.lapse(again)
    (last,) = await scene.leased(1)
    assert (last.task, last.partial) == (0, "continued")
    assert await scene.complete(last)
    assert await scene.store.tasks.partial("r1", 0) is None
    assert await scene.weight() == len(b"group")


async def test_a_repeated_lease_names_the_same_partials(scene: Scene) -> None:
    await scene.start(eta=9)
    (first,) = await scene.leased(1)
    await set_aside(scene, first)
    names = ["a" * 16, "b" * 16]
    arguments = ["w", "aaa", 0, 2, 60_000, 100, *names]
    replies = [await scene.store.tasks._scripts.run("lease", arguments, run="r1") for _ in range(2)]
    assert replies[0] == replies[1]
    assert replies[0][2::2] == [b"0:0:100:0 continued", b"1:0:100:1"]


@pytest.mark.parametrize("ends", ["drop", "filter_group", "skip", "release"])
async def test_a_task_that_ends_or_fails_loses_its_partial(scene: Scene, ends: str) -> None:
    await scene.start(eta=9, max_filtered=10)
    (first,) = await scene.leased(1)
    await set_aside(scene, first)
    (again,) = await scene.leased(1)
    call, store = getattr(scene.store.tasks, ends), scene.store
    match ends:
        case "drop":
            await call("r1", again.attempt, "too_long", "")
        case "filter_group":
            await call("r1", again.attempt, "", 1.0)
        case "skip":
            await call("r1", again.attempt, "")
        case _:
            await call("r1", [again.attempt], cause="refused")
    assert await store.tasks.partial("r1", 0) is None
    assert await scene.weight() == 0


async def test_a_partial_that_no_batch_may_train_any_more_is_dropped(scene: Scene) -> None:
    await scene.start(eta=1)
    leases = await scene.leased(3)
    for lease, oldest in zip(leases, ("aaa:0", "aaa:1", "bbb:1"), strict=True):
        assert await set_aside(scene, lease, oldest)
    await scene.raw.hset(run_key("r1", "run"), "version", 2)
    again = await scene.leased(3, version=2)
    assert [lease.partial for lease in again] == ["stale", "continued", "stale"]
    assert await scene.weight() == len(b"begun")
    # The learner waits for a continued group as for one of its oldest token's version.
    assert await scene.store.trajectories.in_flight("r1", "aaa") == {1: 1, 2: 2}


async def test_a_partial_that_a_worker_with_older_weights_continues_counts_as_older(
    scene: Scene,
) -> None:
    await scene.start(eta=1)
    (first,) = await scene.leased(1, version=1)
    assert await set_aside(scene, first, "aaa:1")
    (again,) = await scene.leased(1, version=0)
    assert again.partial == "continued"
    assert await scene.store.trajectories.in_flight("r1", "aaa") == {0: 1}


async def test_partials_and_waiting_groups_share_the_space_of_the_stream(scene: Scene) -> None:
    await scene.start(eta=9, budget=len(b"begun") + 1)
    first, second = await scene.leased(2)
    assert await set_aside(scene, first)
    assert await set_aside(scene, second) is False
    assert await scene.returned() == [0, 1]
    # A larger partial has no space; the smaller one before it stays.
    (again,) = await scene.leased(1)
    assert (
        await scene.store.tasks.set_aside("r1", again.attempt, "aaa:0", b"begun, and more") is False
    )
    assert await scene.store.tasks.partial("r1", 0) == b"begun"


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
