"""Which dataset, row and options a task has."""

from typing import Any, cast

from rollout.work.group import RunContext
from rollout.work.task_rows import DatasetWork, Rows, TaskRow, TaskRows
from services.contracts.config.data import Data
from services.contracts.rows.mixture import prompt_mixture
from services.contracts.rows.task import TaskPosition

NOTHING = cast(RunContext, None)


def work(name: str, number: int = 0) -> DatasetWork:
    return DatasetWork(name, number, NOTHING, cast(Rows, cast(Any, None)))


def test_tasks_of_a_mixture_go_through_the_order_of_the_mixture() -> None:
    data = Data.model_validate({"dataset": "a", "mix": [{"dataset": "b", "repeats": 2}]})
    mixture = prompt_mixture(data, [3, 2], seed=5)
    rows = TaskRows([work("a"), work("b", 1)], 5, mixture)
    found = [rows.of(TaskPosition(100 + i, i // 7, 7, i % 7)) for i in range(14)]

    places = [(row.dataset.number, row.index) for row in found]
    assert places == [mixture.place(i) for i in range(14)]
    every = [*((0, row) for row in range(3)), *((1, row) for row in range(2) for _ in range(2))]
    assert sorted(places[:7]) == sorted(places[7:]) == every


def test_rows_of_different_datasets_have_different_keys() -> None:
    assert TaskRow(work("a"), 3).key != TaskRow(work("b", 1), 3).key
    assert str(TaskRow(work("b", 1), 3)) == "dataset row 3 of b"


def test_the_rows_of_one_dataset_are_those_of_its_order() -> None:
    task = TaskPosition(4, 0, 9, 4)
    row = TaskRows([work("")], 5).of(task)
    assert (row.index, row.key, str(row)) == (
        task.row(5),
        str(task.row(5)),
        f"dataset row {task.row(5)}",
    )
