"""The assignment of items and blame to workers: the state machine, without processes.

Times are seconds; every task may take 5 s, and is slow after 0.25 s.
"""

import pytest

from reward.verifiers.base import ItemWork, Verdict, broken, correct
from reward.workers.scheduler import (
    Action,
    Cause,
    Done,
    ItemTask,
    Kill,
    Send,
    StartWorker,
    Stop,
    WorkerSchedule,
)
from services.contracts.scores import ScoreStatus


def tasks(count: int, first: int = 0) -> list[ItemTask]:
    return [ItemTask(first + number, 5.0, 0.0) for number in range(count)]


def running(size: int, spare: int = 2, **options: int) -> WorkerSchedule:
    """Return a schedule whose `size` workers (0, 1, …) are up and idle."""
    schedule = WorkerSchedule(size, spare=spare, slow_after=0.25, **options)
    assert schedule.plan(0.0) == [StartWorker()] * size
    for worker in range(size):
        schedule.started(worker)
    return schedule


def sent(actions: list[Action]) -> dict[int, int]:
    return {action.worker: action.task.ticket for action in actions if isinstance(action, Send)}


def test_the_schedule_starts_as_many_workers_as_its_size() -> None:
    schedule = WorkerSchedule(3, spare=2)

    assert schedule.plan(0.0) == [StartWorker()] * 3
    assert schedule.plan(0.0) == []


def test_a_worker_gets_its_next_item_when_its_answer_is_in() -> None:
    schedule = running(2)
    schedule.add(tasks(4))
    assert sent(schedule.plan(0.0)) == {0: 0, 1: 1}
    assert schedule.plan(0.1) == []

    assert schedule.answered(1, correct()) == [Done(1, correct())]

    assert sent(schedule.plan(0.2)) == {1: 2}


def test_withdrawn_items_go_to_no_worker() -> None:
    schedule = running(1)
    schedule.add(tasks(4))
    schedule.plan(0.0)

    # A worker has item 0 already.
    assert schedule.withdraw({0, 1, 2}) == [1, 2]
    schedule.answered(0, correct())
    assert sent(schedule.plan(0.2)) == {0: 3}


def test_another_worker_is_started_in_place_of_one_that_is_on_a_slow_item() -> None:
    schedule = running(1)
    schedule.add(tasks(2))
    schedule.plan(0.0)

    assert schedule.due() == 0.25
    assert schedule.tick(0.25) == []
    assert schedule.plan(0.25) == [StartWorker()]
    schedule.started(1)
    assert sent(schedule.plan(0.3)) == {1: 1}


def test_the_deadline_kills_the_worker_and_its_item_is_tried_again_before_others() -> None:
    schedule = running(1)
    schedule.add(tasks(1))
    schedule.add([ItemTask(9, 5.0, 0.0, slow=True)])
    assert sent(schedule.plan(0.0)) == {0: 9}

    (kill,) = schedule.tick(5.0)

    assert isinstance(kill, Kill)
    assert (kill.worker, kill.task.ticket) == (0, 9)
    assert schedule.due() is None
    schedule.plan(5.0)
    schedule.started(1)
    assert sent(schedule.plan(5.0)) == {1: 9}


def test_twice_over_the_deadline_is_a_timeout_once_the_reference_is_cleared() -> None:
    schedule = running(1)
    task = ItemTask(7, 5.0, -0.5, failures=1)

    assert schedule.blame(task, Cause.DEADLINE, "") == []
    assert task.work is ItemWork.REFERENCE
    # It is known to be slow, so another worker is started for the others.
    assert schedule.plan(0.0) == [Send(0, task), StartWorker()]
    done = schedule.answered(0, Verdict(ScoreStatus.SCORED, 0.0))

    assert done == [Done(7, Verdict(ScoreStatus.TIMEOUT, -0.5, "not finished in 5 s, twice"))]


@pytest.mark.parametrize(
    ("failures", "verdict", "done"),
    [
        # A timeout may be masked.
        (2, Verdict(ScoreStatus.SCORED, 0.0), broken("not finished in 2.5 s, twice")),
        # A request may ask for the check alone.
        (0, Verdict(ScoreStatus.SCORED, 0.0), Verdict(ScoreStatus.SCORED, 0.0)),
        # The check may find a bad reference.
        (2, broken("no number"), broken("no number")),
    ],
)
def test_the_check_of_a_reference_alone_decides(
    failures: int, verdict: Verdict, done: Verdict
) -> None:
    schedule = running(1)
    schedule.add([ItemTask(7, 2.5, None, work=ItemWork.REFERENCE, failures=failures)])
    schedule.plan(0.0)

    assert schedule.answered(0, verdict) == [Done(7, done)]


def test_a_reference_that_does_not_finish_alone_is_an_error_without_reward() -> None:
    schedule = running(1)
    task = ItemTask(7, 5.0, 0.0, work=ItemWork.REFERENCE, failures=2)

    (done,) = schedule.blame(task, Cause.DEADLINE, "")

    assert done == Done(7, broken("checking the reference alone did not finish in 5 s"))


def test_dying_twice_on_an_item_is_an_error() -> None:
    schedule = running(1)
    task = ItemTask(7, 5.0, 0.0)

    assert schedule.blame(task, Cause.DIED, "SIGSEGV") == []
    (done,) = schedule.blame(task, Cause.DIED, "SIGSEGV")

    assert isinstance(done, Done)
    assert done.verdict == broken("the verifier's process died twice: SIGSEGV")


@pytest.mark.parametrize("cause", [Cause.ORPHANED, Cause.UNREAD])
def test_workers_lost_by_other_causes_blame_no_item_until_it_repeats(cause: Cause) -> None:
    schedule = running(1)
    task = ItemTask(7, 5.0, 0.0)

    for _ in range(4):
        assert schedule.blame(task, cause, "") == []
    assert task.failures == 0
    assert schedule.blame(task, cause, "") == []
    (done,) = schedule.blame(task, cause, "with their parent")

    assert done == Done(7, broken("the verifier's process died twice: with their parent"))


def test_a_lost_worker_gives_its_item_back() -> None:
    schedule = running(1)
    schedule.add(tasks(2))
    schedule.plan(0.0)

    culprit = schedule.lost(0)

    assert culprit is not None
    assert culprit.ticket == 0
    assert schedule.plan(0.1) == [StartWorker()]
    schedule.started(1)
    assert sent(schedule.plan(0.1)) == {1: 1}


def all_but_one_slow() -> WorkerSchedule:
    """Workers 0 and 1 are on the slow items 0 and 1; worker 2 is idle, and no more may come."""
    schedule = running(1, spare=2)
    for number in range(2):
        schedule.add(tasks(1, first=number))
        schedule.plan(float(number))
        assert schedule.tick(number + 0.25) == []
        assert schedule.plan(number + 0.25) == [StartWorker()]
        schedule.started(number + 1)
    assert schedule.workers == (1, 0, 2)
    return schedule


def test_slow_items_leave_one_worker_for_quick_ones() -> None:
    schedule = all_but_one_slow()
    schedule.add(tasks(3, first=2))
    assert sent(schedule.plan(3.0)) == {2: 2}

    # Item 2 turns out slow too: it gives its worker up.
    assert schedule.tick(3.25) == [Stop(2)]
    assert schedule.plan(3.25) == [StartWorker()]
    schedule.started(3)
    assert sent(schedule.plan(3.3)) == {3: 3}


def test_an_item_that_gave_its_worker_up_goes_on_when_another_slow_one_is_done() -> None:
    schedule = all_but_one_slow()
    schedule.add(tasks(1, first=2))
    schedule.plan(3.0)
    schedule.tick(3.25)
    assert schedule.waiting == 1

    schedule.answered(0, correct())

    (send,) = [action for action in schedule.plan(3.5) if isinstance(action, Send)]
    assert (send.worker, send.task.ticket, send.task.failures) == (0, 2, 0)
    # It counts as slow from the start: due is its deadline, 5 s from now, after worker 1's.
    assert schedule.workers == (0, 0, 2)
    assert schedule.due() == 6.0


def test_items_known_to_be_slow_never_take_the_last_worker() -> None:
    schedule = running(2, spare=1)
    known = [ItemTask(number, 5.0, 0.0, slow=True) for number in range(8)]
    schedule.add(known)

    assert schedule.plan(0.0) == [Send(0, known[0]), Send(1, known[1]), StartWorker()]
    schedule.started(2)
    assert schedule.plan(0.1) == []
    schedule.add(tasks(1, first=8))
    assert sent(schedule.plan(0.1)) == {2: 8}


def test_a_timed_out_item_is_tried_again_only_when_it_may_be_slow() -> None:
    schedule = all_but_one_slow()
    task = tasks(1, first=2)[0]
    schedule.blame(task, Cause.DEADLINE, "")

    assert schedule.plan(3.0) == []
    schedule.answered(0, correct())
    assert sent(schedule.plan(3.5)) == {0: 2}


def test_without_spare_workers_the_only_one_may_be_slow() -> None:
    schedule = running(1, spare=0)
    schedule.add(tasks(1))
    schedule.plan(0.0)

    assert schedule.tick(0.25) == []
    assert schedule.workers == (0, 0, 1)


def test_surplus_workers_go_when_the_slow_one_is_back() -> None:
    schedule = running(1)
    schedule.add(tasks(1))
    schedule.plan(0.0)
    schedule.tick(0.25)
    assert schedule.plan(0.25) == [StartWorker()]
    schedule.started(1)

    schedule.answered(0, correct())

    assert schedule.plan(0.5) == [Stop(0)]


def test_a_worn_out_worker_is_replaced() -> None:
    schedule = running(1, max_items=1)
    schedule.add(tasks(1))
    schedule.plan(0.0)
    schedule.answered(0, correct())

    assert schedule.plan(0.2) == [Stop(0), StartWorker()]
