"""The check of the datasets that a submission names."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.gateway.submission.dataset_check import find_datasets, with_names


@pytest.mark.parametrize("mix", [5, True, "abc", {"a": 1}])
async def test_only_the_type_check_refuses_a_mixture_that_is_not_a_list(mix: Any) -> None:
    async def find(name: str) -> DatasetRecord:
        return DatasetRecord(id="1", name=name, rows=1, created=0.0, segments=[])

    deps: Any = SimpleNamespace(store=SimpleNamespace(datasets=SimpleNamespace(find=find)))
    raw, found = await find_datasets(deps, {"data": {"dataset": "d", "mix": mix}}, [])
    assert raw["data"] == {"dataset": "1", "mix": mix}
    assert list(found) == ["data.dataset"]


@pytest.mark.parametrize(
    ("name", "called", "same"),
    [
        (None, "with the id '789eb503548939f9'", "the name that it had"),
        ("sums", "'sums' (789eb503548939f9)", "the same name"),
    ],
)
async def test_a_resumed_run_whose_dataset_was_deleted_names_the_way_back(
    name: str | None, called: str, same: str
) -> None:
    async def find(name: str) -> None: ...
    async def every() -> list[DatasetRecord]:
        return []

    deps: Any = SimpleNamespace(
        store=SimpleNamespace(datasets=SimpleNamespace(find=find, list=every))
    )
    config: dict[str, Any] = {"data": {"dataset": "789eb503548939f9"}}
    run = RunRecord(
        id="a1",
        name="grpo",
        pool="default",
        kind="rl",
        state=RunState.FAILED,
        config=config,
        dataset_names={"data.dataset": name} if name else {},
        created=0.0,
        max_steps=1,
    )
    problems: list[tuple[str, str]] = []
    await find_datasets(deps, config, problems, run)
    assert problems == [
        (
            "data.dataset",
            f"the dataset {called}, with which run grpo (a1) began, was deleted: upload the same "
            f"rows under {same} again, which gives the dataset the same id",
        )
    ]
    changed = {"data": {"dataset": "other"}}
    problems.clear()
    await find_datasets(deps, changed, problems, run)
    assert problems == [("data.dataset", "there is no dataset 'other'; none has been uploaded yet")]


def test_a_run_without_a_dataset_is_told_which_there_are() -> None:
    sums = DatasetRecord(id="1", name="sums", rows=1, created=0.0, segments=[])
    problems = [("data.dataset", "is required: name it"), ("rewards", "is required")]
    assert with_names(problems, [sums]) == [
        ("data.dataset", "is required: name it; there is sums"),
        ("rewards", "is required"),
    ]
