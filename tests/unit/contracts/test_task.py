"""Positions of tasks as text, and the rows that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.rows.task import TaskPosition
from tests.unit.contracts.configs import rl


def test_a_position_is_read_back_from_its_text() -> None:
    position = TaskPosition(position=7, epoch=1, rows=5, index=2)

    assert str(position) == "7:1:5:2"
    assert TaskPosition.parse("7:1:5:2") == position


@pytest.mark.parametrize("text", ["", "7", "7:1:5", "7:1:5:2:0", "a:1:5:2"])
def test_a_text_that_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        TaskPosition.parse(text)


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 50))
def test_an_epoch_has_each_row_once(seed: int, epoch: int, rows: int) -> None:
    found = {TaskPosition(0, epoch, rows, index).row(seed) for index in range(rows)}

    assert found == set(range(rows))


def test_without_a_seed_an_epoch_has_the_rows_in_the_order_of_the_file() -> None:
    found = [TaskPosition(9, epoch, 4, index).row(None) for epoch in (0, 1) for index in range(4)]
    assert found == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rl().order_seed == 0
    assert rl(training={"seed": 7}).order_seed == 7
    assert rl(data={"dataset": "d", "order": "file"}, training={"seed": 7}).order_seed is None
