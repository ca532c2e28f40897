"""Shares of the peak learning rate, by hand."""

import pytest

from learner.optim.schedules import lr_share
from services.contracts.config.training import Schedule


def shares(schedule: Schedule, steps: list[int], total: int = 10) -> list[float]:
    return [lr_share(schedule, step, total) for step in steps]


def test_warm_up_rises_linearly_and_is_never_zero() -> None:
    schedule = Schedule(type="constant", warmup_steps=3)
    assert shares(schedule, [0, 1, 2, 3, 9]) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_warm_up_counts_batches_whatever_a_batch_is_cut_into() -> None:
    schedule = Schedule(type="constant", warmup_steps=2)
    # 2 batches of 4 updates: nine equal steps up, the ninth is the first at the peak.
    rising = [lr_share(schedule, batch, 10, i, 4) for batch in (0, 1, 2) for i in range(4)]
    assert rising == pytest.approx([*(n / 9 for n in range(1, 9)), 1, 1, 1, 1])


def test_a_run_resumed_with_other_minibatches_goes_on_at_the_same_rate() -> None:
    schedule = Schedule(type="linear")
    for updates in (1, 4):
        assert lr_share(schedule, 5, 10, 0, updates) == pytest.approx(0.5)
    # The last update is one update's width from the end.
    assert lr_share(schedule, 9, 10, 3, 4) == pytest.approx(1 / 40)


def test_linear_falls_to_its_floor() -> None:
    assert shares(Schedule(type="linear"), [0, 5, 9, 10, 12]) == pytest.approx([1, 0.5, 0.1, 0, 0])
    floor = Schedule(type="linear", floor=0.5)
    assert shares(floor, [0, 5, 10]) == [1.0, 0.75, 0.5]


def test_cosine_is_half_way_at_half_time() -> None:
    schedule = Schedule(type="cosine", floor=0.1)
    assert shares(schedule, [0, 5, 10]) == pytest.approx([1.0, 0.55, 0.1])


def test_wsd_is_flat_until_its_decay_share() -> None:
    schedule = Schedule(type="wsd", decay_share=0.4)
    assert shares(schedule, [0, 5, 6, 8, 10]) == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.0])


def test_a_decay_begins_after_a_longer_warm_up() -> None:
    schedule = Schedule(type="wsd", decay_share=0.4, warmup_steps=8)
    assert shares(schedule, [7, 8, 9, 10]) == pytest.approx([8 / 9, 1.0, 0.5, 0.0])
    linear = Schedule(type="linear", warmup_steps=8)
    assert shares(linear, [7, 8, 9, 10]) == pytest.approx([8 / 9, 1.0, 0.5, 0.0])
