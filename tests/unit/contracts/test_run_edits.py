"""Edits of a run: the values that each step has, before and after a crash."""

import pytest

from headrace.config_keys import EditedKey
from services.contracts.run_edits import RunEdit, taken, value_for


def edit(key: EditedKey, before: float | None, after: float, step: int | None = None) -> RunEdit:
    return RunEdit(key=key, before=before, after=after, by="alice", time=1.0, step=step)


def test_a_new_edit_is_taken_for_a_step_and_an_older_one_keeps_its_step() -> None:
    edits = [edit("lr", 1.0, 2.0, step=4), edit("lr", 2.0, 3.0), edit("max_steps", 9, 12)]

    assert [each.step for each in taken(edits, 7)] == [4, 7, 7]
    assert taken(taken(edits, 7), 8) == taken(edits, 7)


@pytest.mark.parametrize(
    ("step", "lr"), [(1, 1.0), (3, 1.0), (4, 2.0), (6, 2.0), (7, 3.0), (99, 3.0)]
)
def test_a_step_has_the_value_of_the_last_edit_before_it(step: int, lr: float) -> None:
    edits = [edit("lr", 1.0, 2.0, step=4), edit("lr", 2.0, 3.0, step=7), edit("lr", 3.0, 4.0)]

    assert value_for(edits, "lr", step) == lr
    assert value_for(edits, "max_steps", step) is None
