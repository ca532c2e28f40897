"""Distance along the tree of versions, and the selection of a batch's groups."""

import pytest

from learner.batch.staleness import Ancestry
from learner.coordinate.batch_selection import BatchSelection, WaitingGroup
from services.contracts.groups.group_lengths import GroupLengths

# a: versions 0..., b forked from a at 5, c forked from b at 8.
TREE = Ancestry((("a", 0), ("b", 5), ("c", 8)))


@pytest.mark.parametrize(
    ("tag", "version", "distance"),
    [
        ("c:9", 9, 0),
        ("c:8", 11, 3),
        ("b:6", 9, 3),  # c passed through b's version 6
        ("b:10", 9, 3),  # two back to the fork at 8, one forward
        ("a:7", 9, 6),  # two back to the fork at 5, four forward
        ("a:3", 9, 6),
    ],
)
def test_staleness_goes_back_to_the_fork_and_forward_again(
    tag: str, version: int, distance: int
) -> None:
    assert TREE.staleness(tag, version) == distance


def test_going_back_twice_counts_from_the_lowest_fork() -> None:
    tree = Ancestry((("a", 0), ("b", 5), ("c", 3)))
    assert tree.staleness("a:4", 4) == 2


def test_a_foreign_lineage_is_named() -> None:
    with pytest.raises(ValueError, match="z:1 belongs to no lineage of this run"):
        TREE.staleness("z:1", 9)


SINGLE = Ancestry((("a", 0),))


def waiting(position: int, version: int, entry: str | None = None) -> WaitingGroup:
    lengths = GroupLengths(2, (3, 4))
    task = f"{position}:0:100:{position}"
    return WaitingGroup(entry or f"e{position}", task, f"a:{version}", 10, lengths)


def positions(groups: list[WaitingGroup] | None) -> list[int] | None:
    return None if groups is None else [group.position for group in groups]


def test_a_batch_waits_until_there_are_enough_groups() -> None:
    selection = BatchSelection(batch=2, max_staleness=1)
    selection.arrive([waiting(4, 1)])
    assert selection.take(SINGLE, 1, step=1) is None


def test_the_oldest_versions_go_first_then_the_order_of_the_run() -> None:
    selection = BatchSelection(batch=3, max_staleness=2)
    selection.arrive([waiting(9, 2), waiting(3, 2), waiting(7, 1), waiting(8, 0)])
    assert positions(selection.take(SINGLE, 2, step=2)) == [8, 7, 3]


def test_groups_that_would_be_too_stale_for_the_next_batch_are_in_this_one() -> None:
    selection = BatchSelection(batch=2, max_staleness=1)
    selection.arrive([waiting(1, 5), waiting(2, 5), waiting(3, 4), waiting(4, 4)])
    assert positions(selection.take(SINGLE, 5, step=5)) == [3, 4]
    assert selection.stale(SINGLE, 6) == []
    assert positions(selection.take(SINGLE, 6, step=6)) == [1, 2]


def test_stale_groups_are_removed_from_the_queue() -> None:
    selection = BatchSelection(batch=1, max_staleness=1)
    selection.arrive([waiting(1, 3), waiting(2, 4), waiting(3, 5)])
    assert positions(selection.stale(SINGLE, 5)) == [1]
    assert positions(selection.take(SINGLE, 5, step=5)) == [2]


def test_a_redelivered_entry_or_a_second_group_of_a_task_counts_once() -> None:
    selection = BatchSelection(batch=1, max_staleness=9)
    selection.arrive([waiting(1, 0)])
    selection.arrive([waiting(1, 0), waiting(1, 0, entry="again")])
    assert positions(selection.take(SINGLE, 0, step=0)) == [1]
    selection.arrive([waiting(1, 0)])
    assert selection.take(SINGLE, 0, step=0) is None


def test_entries_of_a_recorded_plan_are_not_taken_again() -> None:
    selection = BatchSelection(batch=1, max_staleness=9)
    selection.planned(["e1"], step=1)
    selection.arrive([waiting(1, 0), waiting(2, 0)])
    assert positions(selection.take(SINGLE, 0, step=0)) == [2]


def test_a_lineage_passed_through_the_versions_before_it_was_left() -> None:
    ancestry = Ancestry((("a", 0), ("b", 20), ("c", 10)))
    assert ancestry.passed("a", 10)
    assert not ancestry.passed("a", 11)  # b went on from 20, but c went back to 10
    assert not ancestry.passed("b", 20)
    assert ancestry.passed("c", 99)
    assert not ancestry.passed("z", 0)


def test_committed_and_requeued_entries_are_forgotten_and_planned_ones_are_not() -> None:
    selection = BatchSelection(batch=1, max_staleness=1)
    selection.arrive([waiting(position, position) for position in (1, 2, 3)])
    for version in (1, 2):
        selection.take(SINGLE, version, step=version)

    selection.committed(1)

    assert set(selection.seen) == {"e2", "e3"}
    assert positions(selection.stale(SINGLE, 9)) == [3]
    assert set(selection.seen) == {"e2"}


def test_a_group_in_flight_that_would_be_too_stale_for_the_next_batch_is_waited_for() -> None:
    selection = BatchSelection(batch=2, max_staleness=1)
    selection.arrive([waiting(1, 4), waiting(2, 5)])

    # Trained at 5: groups begun under 4 have their last chance.
    assert selection.take(SINGLE, 5, step=6, in_flight={4: 1}) is None
    assert positions(selection.take(SINGLE, 5, step=6, in_flight={5: 9})) == [1, 2]


def test_a_group_in_flight_is_not_waited_for_if_this_batch_has_no_place_for_it() -> None:
    selection = BatchSelection(batch=2, max_staleness=1)
    selection.arrive([waiting(1, 4), waiting(2, 4), waiting(3, 5)])

    assert positions(selection.take(SINGLE, 5, step=6, in_flight={4: 3})) == [1, 2]


def test_a_group_in_flight_that_is_already_too_stale_is_not_waited_for() -> None:
    selection = BatchSelection(batch=2, max_staleness=1)
    selection.arrive([waiting(1, 5), waiting(2, 5)])

    assert positions(selection.take(SINGLE, 5, step=6, in_flight={3: 1})) == [1, 2]


def test_later_batches_are_not_left_more_than_they_can_hold() -> None:
    # Trained at 5 with η = 2. A group begun under 4 trains at 6 at the latest, and step 6 has 2
    # places.
    for in_the_works, formed in ((2, True), (3, False)):
        selection = BatchSelection(batch=2, max_staleness=2)
        selection.arrive([waiting(1, 5), waiting(2, 5)])
        batch = selection.take(SINGLE, 5, step=6, in_flight={4: in_the_works})
        assert (batch is not None) == formed


def test_a_batch_whose_groups_are_as_old_as_those_in_flight_is_formed() -> None:
    selection = BatchSelection(batch=2, max_staleness=2)
    selection.arrive([waiting(1, 4), waiting(2, 4)])

    assert positions(selection.take(SINGLE, 5, step=6, in_flight={4: 9})) == [1, 2]


def test_a_batch_with_a_group_that_is_too_stale_is_never_formed() -> None:
    selection = BatchSelection(batch=1, max_staleness=1)
    selection.arrive([waiting(1, 3)])

    with pytest.raises(ValueError, match="task 1:0:100:1 is too stale for version 5"):
        selection.take(SINGLE, 5, step=6)
