"""Distance along the tree of versions, and which groups a batch takes."""

import pytest

from learner.collector import Collector, Waiting
from learner.staleness import Ancestry

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
def test_distance_goes_back_to_the_fork_and_forward_again(
    tag: str, version: int, distance: int
) -> None:
    assert TREE.distance(tag, version) == distance


def test_going_back_twice_counts_from_the_lowest_fork() -> None:
    tree = Ancestry((("a", 0), ("b", 5), ("c", 3)))
    assert tree.distance("a:4", 4) == 2


def test_a_foreign_lineage_is_named() -> None:
    with pytest.raises(ValueError, match="z:1 belongs to no lineage of this run"):
        TREE.distance("z:1", 9)


SINGLE = Ancestry((("a", 0),))


def waiting(position: int, version: int, entry: str | None = None) -> Waiting:
    return Waiting(entry or f"e{position}", f"{position}:0:100:{position}", f"a:{version}", 10)


def positions(groups: list[Waiting] | None) -> list[int] | None:
    return None if groups is None else [group.position for group in groups]


def test_a_batch_waits_until_there_are_enough_groups() -> None:
    collector = Collector(batch=2, max_staleness=1)
    collector.arrive([waiting(4, 1)])
    assert collector.take(SINGLE, 1, step=1) is None


def test_the_oldest_versions_go_first_then_the_order_of_the_run() -> None:
    collector = Collector(batch=3, max_staleness=2)
    collector.arrive([waiting(9, 2), waiting(3, 2), waiting(7, 1), waiting(8, 0)])
    assert positions(collector.take(SINGLE, 2, step=2)) == [8, 7, 3]


def test_what_would_be_too_stale_next_time_is_in_this_batch() -> None:
    collector = Collector(batch=2, max_staleness=1)
    collector.arrive([waiting(1, 5), waiting(2, 5), waiting(3, 4), waiting(4, 4)])
    assert positions(collector.take(SINGLE, 5, step=5)) == [3, 4]
    assert collector.stale(SINGLE, 6) == []
    assert positions(collector.take(SINGLE, 6, step=6)) == [1, 2]


def test_stale_groups_are_taken_out() -> None:
    collector = Collector(batch=1, max_staleness=1)
    collector.arrive([waiting(1, 3), waiting(2, 4), waiting(3, 5)])
    assert positions(collector.stale(SINGLE, 5)) == [1]
    assert positions(collector.take(SINGLE, 5, step=5)) == [2]


def test_a_redelivered_entry_or_a_second_group_of_a_draw_counts_once() -> None:
    collector = Collector(batch=1, max_staleness=9)
    collector.arrive([waiting(1, 0)])
    collector.arrive([waiting(1, 0), waiting(1, 0, entry="again")])
    assert positions(collector.take(SINGLE, 0, step=0)) == [1]
    collector.arrive([waiting(1, 0)])
    assert collector.take(SINGLE, 0, step=0) is None


def test_entries_of_a_recorded_plan_are_not_taken_again() -> None:
    collector = Collector(batch=1, max_staleness=9)
    collector.planned(["e1"], step=1)
    collector.arrive([waiting(1, 0), waiting(2, 0)])
    assert positions(collector.take(SINGLE, 0, step=0)) == [2]


def test_a_lineage_passed_through_the_versions_before_it_was_left() -> None:
    ancestry = Ancestry((("a", 0), ("b", 20), ("c", 10)))
    assert ancestry.passed("a", 10)
    assert not ancestry.passed("a", 11)  # b went on from 20, but c went back to 10
    assert not ancestry.passed("b", 20)
    assert ancestry.passed("c", 99)
    assert not ancestry.passed("z", 0)


def test_what_is_committed_or_given_back_is_forgotten_and_what_is_planned_is_not() -> None:
    collector = Collector(batch=1, max_staleness=1)
    collector.arrive([waiting(position, position) for position in (1, 2, 3)])
    for version in (1, 2):
        collector.take(SINGLE, version, step=version)

    collector.committed(1)

    assert set(collector.seen) == {"e2", "e3"}
    assert positions(collector.stale(SINGLE, 9)) == [3]
    assert set(collector.seen) == {"e2"}


def test_a_group_in_the_works_that_would_be_too_old_for_the_next_batch_is_waited_for() -> None:
    collector = Collector(batch=2, max_staleness=1)
    collector.arrive([waiting(1, 4), waiting(2, 5)])

    # Trained at 5: what was begun under 4 has its last chance.
    assert collector.take(SINGLE, 5, step=6, awaited={4: 1}) is None
    assert positions(collector.take(SINGLE, 5, step=6, awaited={5: 9})) == [1, 2]


def test_it_is_not_waited_for_where_it_would_find_no_place() -> None:
    collector = Collector(batch=2, max_staleness=1)
    collector.arrive([waiting(1, 4), waiting(2, 4), waiting(3, 5)])

    assert positions(collector.take(SINGLE, 5, step=6, awaited={4: 3})) == [1, 2]


def test_what_is_too_old_already_is_not_waited_for() -> None:
    collector = Collector(batch=2, max_staleness=1)
    collector.arrive([waiting(1, 5), waiting(2, 5)])

    assert positions(collector.take(SINGLE, 5, step=6, awaited={3: 1})) == [1, 2]


def test_later_batches_are_not_left_more_than_they_can_hold() -> None:
    # Trained at 5 with η = 2; begun under 4: trained at 6 at the latest, where 2 find a place.
    for in_the_works, formed in ((2, True), (3, False)):
        collector = Collector(batch=2, max_staleness=2)
        collector.arrive([waiting(1, 5), waiting(2, 5)])
        batch = collector.take(SINGLE, 5, step=6, awaited={4: in_the_works})
        assert (batch is not None) == formed


def test_a_batch_of_groups_that_are_as_old_is_formed() -> None:
    collector = Collector(batch=2, max_staleness=2)
    collector.arrive([waiting(1, 4), waiting(2, 4)])

    assert positions(collector.take(SINGLE, 5, step=6, awaited={4: 9})) == [1, 2]


def test_a_batch_with_a_group_that_is_too_old_is_never_formed() -> None:
    collector = Collector(batch=1, max_staleness=1)
    collector.arrive([waiting(1, 3)])

    with pytest.raises(ValueError, match="draw 1:0:100:1 is too stale for version 5"):
        collector.take(SINGLE, 5, step=6)
