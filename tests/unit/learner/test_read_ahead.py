"""The rows of the next step are read while a step is trained."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from learner.batch.sft_steps import SFTStep, StepRow
from learner.sft_data.read_ahead import ReadAhead


class Rows:
    """Steps of one row each; the examples of a row are its number."""

    def __init__(self) -> None:
        self.steps = SimpleNamespace(next=self._next)
        self.read: list[tuple[int, bool]] = []
        """Rows, and whether the main thread has read them."""
        self.damaged: int | None = None
        self._position = 0

    def _next(self) -> SFTStep:
        row, self._position = self._position, self._position + 1
        return SFTStep([StepRow(0, row, 4)], 0, 0, 0, self._position, [])

    def examples(self, uses: list[StepRow]) -> list[int]:
        (use,) = uses
        self.read.append((use.row, threading.current_thread() is threading.main_thread()))
        if use.row == self.damaged:
            raise FileNotFoundError("tokens are gone")
        return [use.row]


def reading(rows: Rows) -> ReadAhead:
    made: Any = rows
    return ReadAhead(made, list)


def test_steps_come_in_their_order_and_each_after_the_first_is_read_by_the_thread() -> None:
    rows = Rows()
    ahead = reading(rows)
    found: list[tuple[SFTStep, Any]] = [ahead.next(is_last=number == 2) for number in range(3)]
    ahead.close()
    assert [examples for _, examples in found] == [[0], [1], [2]]
    # A checkpoint holds the position of the trained step.
    assert [step.position for step, _ in found] == [1, 2, 3]
    assert rows.read == [(0, True), (1, False), (2, False)]


def test_nothing_is_read_after_waiting() -> None:
    rows = Rows()
    ahead = reading(rows)
    ahead.next(is_last=False)
    ahead.wait()
    assert rows.read == [(0, True), (1, False)]
    ahead.close()


def test_rows_that_cannot_be_read_end_the_run_when_they_are_due() -> None:
    rows = Rows()
    rows.damaged = 1
    ahead = reading(rows)
    ahead.next(is_last=False)
    ahead.wait()
    with pytest.raises(FileNotFoundError, match="tokens are gone"):
        ahead.next(is_last=False)
    ahead.close()
