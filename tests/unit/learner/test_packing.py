"""Minibatches are cut anew for each pass. Micro-batches respect the budget, lose nothing, and come
in the requested number. Every process makes the same cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.batch.packing import micro_batches, micro_batches_needed, minibatches

POSITIONS = [40, 3, 17, 8, 21, 5, 30, 12, 9]
lengths_strategy = st.lists(st.integers(1, 50), max_size=40)


def test_cuts_follow_the_order_of_length_and_are_even() -> None:
    assert micro_batches([3, 9, 2, 8], budget=17) == [[1], [3, 0, 2]]


def test_a_sequence_over_the_budget_stands_alone() -> None:
    assert micro_batches([5, 30, 4], budget=10) == [[1], [0, 2]]


def test_more_micro_batches_than_needed_come_out_even() -> None:
    assert micro_batches([4, 4, 4, 4], budget=16, count=2) == [[0, 1], [2, 3]]


def test_fewer_sequences_than_micro_batches_leave_empty_ones() -> None:
    assert micro_batches([4], budget=16, count=3) == [[0], [], []]
    assert micro_batches([], budget=16, count=2) == [[], []]


def test_too_few_micro_batches_for_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match="24 tokens need 2 micro-batches of 16, not 1"):
        micro_batches([8, 8, 8], budget=16, count=1)


@given(lengths_strategy, st.integers(50, 200), st.integers(0, 5))
def test_every_sequence_is_in_exactly_one_micro_batch_within_budget(
    lengths: list[int], budget: int, spare: int
) -> None:
    count = micro_batches_needed(lengths, budget) + spare
    cuts = micro_batches(lengths, budget, count)
    assert len(cuts) == count
    assert sorted(i for cut in cuts for i in cut) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in cut) <= budget for cut in cuts)


def test_each_pass_trains_every_group_once_in_minibatches_of_its_own() -> None:
    passes = [minibatches(POSITIONS, 3, 0, 7, number) for number in range(4)]

    for one in passes:
        assert [len(part) for part in one] == [3, 3, 3]
        assert sorted(position for part in one for position in part) == sorted(POSITIONS)
    assert len({str([sorted(part) for part in one]) for one in passes}) == 4


def test_the_cut_depends_on_seed_step_and_pass_and_not_on_the_order_of_the_groups() -> None:
    assert minibatches(POSITIONS, 2, 0, 7, 1) == minibatches(sorted(POSITIONS), 2, 0, 7, 1)
    found = [minibatches(POSITIONS, 2, *key) for key in ((0, 7, 1), (1, 7, 1), (0, 8, 1))]
    assert found[0] not in found[1:]


def test_a_single_minibatch_keeps_the_order_of_the_batch() -> None:
    assert minibatches(POSITIONS, 1, 0, 7, 1) == [POSITIONS]
