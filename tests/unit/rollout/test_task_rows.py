"""A task's dataset, row and options."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollout.work.run_context import RunContext
from rollout.work.task_rows import DatasetWork, Rows, RowsAway, TaskRow, TaskRows
from services.contracts.config.data import Data
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.contracts.rows.mixture import prompt_mixture
from services.contracts.rows.task import TaskPosition
from services.contracts.weights import WeightFile
from services.datasets.segments import write_segment
from services.store import Store
from services.volume import GatewayAway, Volume

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


class Fetching:
    """A volume that has a dataset's file only after a fetch."""

    def __init__(self, root: Path) -> None:
        self.volume = Volume(root)
        self.root = root
        self.begun = asyncio.Event()
        self.arrives = asyncio.Event()
        self.error: Exception | None = None
        self.fetched: list[str] = []

    def path(self, name: str) -> Path:
        return self.volume.path(name)

    async def fetch(self, file: WeightFile) -> Path:
        self.begun.set()
        self.fetched.append(file.name)
        await self.arrives.wait()
        if self.error is not None:
            raise self.error
        path = self.path(file.name)
        if not path.exists():
            path.with_suffix(".there").rename(path)
        return path


class Dataset:
    """A dataset of rows 'a', 'b', …, in segments whose files are not here yet."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.record = DatasetRecord(id="d", name="d", rows=0, created=1.0, segments=[])

    def add(self, *prompts: str) -> None:
        rows = [Row(prompt=prompt, answer="") for prompt in prompts]
        segment = write_segment(rows, self._root, "d")
        path = self._root / segment.file
        path.rename(path.with_suffix(".there"))
        segments = [*self.record.segments, segment]
        total = self.record.rows + len(prompts)
        self.record = self.record.model_copy(update={"segments": segments, "rows": total})

    async def find(self, name: str) -> DatasetRecord:
        return self.record


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


@pytest.fixture
def volume(tmp_path: Path) -> Fetching:
    return Fetching(tmp_path)


@pytest.fixture
def rows(dataset: Dataset, volume: Fetching) -> Rows:
    store = SimpleNamespace(datasets=dataset)
    return Rows(cast(Store, store), cast(Volume, volume), "d")


async def test_a_row_waits_for_a_file_that_another_task_fetches(
    dataset: Dataset, volume: Fetching, rows: Rows
) -> None:
    dataset.add("a", "b")
    first = asyncio.create_task(rows.row(0))
    await volume.begun.wait()
    second = asyncio.create_task(rows.row(1))
    await asyncio.sleep(0.01)
    assert not second.done()
    volume.arrives.set()
    assert [(await one).prompt for one in (first, second)] == ["a", "b"]
    assert len(volume.fetched) == 1

    dataset.add("c")
    volume.arrives.clear()
    volume.begun.clear()
    third = asyncio.create_task(rows.row(2))
    await volume.begun.wait()
    assert (await rows.row(0)).prompt == "a"
    fourth = asyncio.create_task(rows.row(2))
    await asyncio.sleep(0.01)
    assert not fourth.done()
    volume.arrives.set()
    assert [(await one).prompt for one in (third, fourth)] == ["c", "c"]
    assert len(volume.fetched) == 2


async def test_a_file_that_could_not_be_fetched_is_fetched_for_the_next_row(
    dataset: Dataset, volume: Fetching, rows: Rows
) -> None:
    dataset.add("a", "b")
    volume.arrives.set()
    volume.error = GatewayAway("the gateway is started again")
    with pytest.raises(GatewayAway):
        await rows.row(0)
    volume.error = None
    assert (await rows.row(1)).prompt == "b"


async def test_a_file_that_was_missing_for_a_moment_is_found_again(
    tmp_path: Path, dataset: Dataset, rows: Rows
) -> None:
    dataset.add("a", "b")
    file = tmp_path / dataset.record.segments[0].file
    gone = file.with_suffix(".there")
    there = Rows(cast(Store, SimpleNamespace(datasets=dataset)), Volume(tmp_path), "d")
    for index in range(2):
        with pytest.raises(RowsAway, match="the files of dataset d cannot be read on this host"):
            await there.row(index)
    assert there.count == 2
    gone.rename(file)
    assert (await there.row(0)).prompt == "a"
