"""Micro-batches respect the budget, lose nothing, and come in the requested number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.batch.packing import micro_batches, micro_batches_needed

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
