"""The check of the datasets that a submission names."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.records import DatasetRecord
from services.gateway.submission.dataset_check import find_datasets


@pytest.mark.parametrize("mix", [5, True, "abc", {"a": 1}])
async def test_only_the_type_check_refuses_a_mixture_that_is_not_a_list(mix: Any) -> None:
    async def find(name: str) -> DatasetRecord:
        return DatasetRecord(id="1", name=name, rows=1, created=0.0, segments=[])

    deps: Any = SimpleNamespace(store=SimpleNamespace(datasets=SimpleNamespace(find=find)))
    raw, found = await find_datasets(deps, {"data": {"dataset": "d", "mix": mix}}, [])
    assert raw["data"] == {"dataset": "1", "mix": mix}
    assert list(found) == ["data.dataset"]
