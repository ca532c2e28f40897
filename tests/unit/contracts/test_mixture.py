"""The order of a supervised run's rows is a function of seed and position."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.config.data import Component
from services.contracts.rows.mixture import Mixture, Source, sources


def read(mixture: Mixture, start: int, stop: int) -> list[tuple[int, int]]:
    which, rows = mixture.block(start, stop)
    return list(zip(which.tolist(), rows.tolist(), strict=True))


def test_an_epoch_has_each_row_as_often_as_its_dataset_repeats() -> None:
    components = [Component(dataset="a"), Component(dataset="b", repeats=3)]
    mixture = Mixture(sources(components, [5, 4], share=0.0), seed=7)

    epochs = [Counter(read(mixture, start, start + 17)) for start in (0, 17)]

    assert mixture.epoch_rows == 17
    for epoch in epochs:
        assert epoch == {**{(0, n): 1 for n in range(5)}, **{(1, n): 3 for n in range(4)}}
    assert read(mixture, 0, 17) != read(mixture, 17, 34)


def test_half_of_a_dataset_in_each_epoch_covers_it_in_two_epochs() -> None:
    mixture = Mixture(sources([Component(dataset="a", repeats=0.5)], [10], share=0.0), seed=1)
    assert mixture.epoch_rows == 5
    assert sorted(row for _, row in read(mixture, 0, 10)) == list(range(10))


def test_weights_are_shares_of_an_epoch_as_long_as_all_datasets_together() -> None:
    components = [Component(dataset="a", weight=3), Component(dataset="b", weight=1)]
    mixture = Mixture(sources(components, [8, 92], share=0.0), seed=1)
    counts = Counter(which for which, _ in read(mixture, 0, mixture.epoch_rows))
    assert counts == {0: 75, 1: 25}


def test_rows_that_are_held_out_are_never_trained() -> None:
    mixture = Mixture([Source(20, 4, 32), Source(10, 0, 10)], seed=3)
    held = set(mixture.held_out(0).tolist())
    trained = {row for which, row in read(mixture, 0, 3 * 42) if which == 0}
    assert len(held) == 4
    assert trained == set(range(20)) - held
    assert mixture.held_out(1).tolist() == []


def test_a_dataset_that_is_there_twice_never_trains_the_rows_it_validates() -> None:
    parts = [("b", 1), ("a", 1), ("a", 2)]
    components = [Component(dataset=name, repeats=times) for name, times in parts]
    mixture = Mixture(sources(components, [10, 20, 20], share=0.2), seed=3)
    held = {number: set(mixture.held_out(number).tolist()) for number in (1, 2)}
    trained = {row for which, row in read(mixture, 0, 3 * mixture.epoch_rows) if which}
    assert held[1] == held[2]
    assert not trained & held[1]


@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 90), size=st.integers(1, 60))
def test_a_position_means_the_same_whatever_is_read_with_it(start: int, size: int) -> None:
    made = [Source(7, 2, 9), Source(11, 0, 4)]
    whole = read(Mixture(made, seed=5), 0, 150)
    assert read(Mixture(made, seed=5), start, start + size) == whole[start : start + size]


@pytest.mark.parametrize(
    ("component", "rows", "reason"),
    [
        (Component(dataset="a"), 0, "dataset a is empty: add rows to it first"),
        (Component(dataset="a", repeats=0.01), 10, "dataset a gives 0.1 rows to an epoch: raise"),
    ],
)
def test_a_dataset_without_rows_for_an_epoch_is_refused(
    component: Component, rows: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        sources([component], [rows], 0.0)
