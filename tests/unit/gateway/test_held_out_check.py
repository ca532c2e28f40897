"""The check whether a run trains on the rows that it is measured by."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.contracts.records import DatasetRecord
from services.datasets import SourceFile, append_rows, import_files, shared_rows
from services.datasets.stored_rows import DatasetReader
from services.gateway.dependencies import Dependencies
from services.gateway.submission.dataset_check import find_datasets
from services.gateway.submission.held_out_check import check_held_out
from services.volume import Volume


def dataset(root: Path, name: str, sums: range) -> DatasetRecord:
    lines = "\n".join(f'{{"question": "{n}+{n}", "answer": {2 * n}}}' for n in sums)
    found = import_files(root, [SourceFile(io.BytesIO(lines.encode()), f"{name}.jsonl")], name)
    rows = found.segment.rows
    return DatasetRecord(id=found.id, name=name, rows=rows, created=0, segments=[found.segment])


def warnings_of(root: Path, raw: dict[str, Any], *records: DatasetRecord) -> list[str]:
    async def find(name: str) -> DatasetRecord | None:
        return next((one for one in records if one.name == name), None)

    async def check() -> list[str]:
        store = SimpleNamespace(datasets=SimpleNamespace(find=find))
        deps = cast(Dependencies, SimpleNamespace(store=store, volume=Volume(root)))
        _, datasets = await find_datasets(deps, raw, [])
        return await check_held_out(deps, datasets)

    return asyncio.run(check())


def test_a_supervised_run_that_validates_on_trained_rows_gives_a_warning(tmp_path: Path) -> None:
    train, held = (
        dataset(tmp_path, name, sums) for name, sums in [("a", range(3)), ("b", range(3, 9))]
    )
    raw = {"type": "sft", "data": {"dataset": "a"}, "validation": {"datasets": ["b", "a"]}}
    (warning,) = warnings_of(tmp_path, raw, train, held)
    assert warning.startswith(
        "validation.datasets.1.dataset: the run also trains on 3 of the 3 rows of a (data.dataset "
        "is a), so the loss will look lower than it is"
    )


def test_single_rows_that_are_also_trained_give_a_warning_with_their_number(tmp_path: Path) -> None:
    train, more, held = (
        dataset(tmp_path, name, sums)
        for name, sums in [("a", range(5)), ("m", range(20, 30)), ("b", range(3, 9))]
    )
    raw = {
        "data": {"dataset": "m", "mix": [{"dataset": "a"}]},
        "evaluation": {"dataset": "b", "more": [{"dataset": "m"}]},
    }
    first, second = warnings_of(tmp_path, raw, train, more, held)
    assert first.startswith(
        "evaluation.dataset: the run also trains on 2 of the 6 rows of b (data.mix.0.dataset is a)"
    )
    assert "10 of the 10 rows of m" in second


def test_rows_with_another_answer_are_not_shared(tmp_path: Path) -> None:
    train = dataset(tmp_path, "a", range(3))
    rows = DatasetReader(Volume(tmp_path), train).rows(range(3))
    for row in rows[1:]:
        row.answer = "?"
    held = train.model_copy(update={"segments": [append_rows(tmp_path, train.id, rows)]})
    assert shared_rows(Volume(tmp_path), held, train) == 1


def test_a_dataset_too_large_to_compare_is_compared_by_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.datasets.row_overlap.COMPARED_BYTES", 1000)
    train, held = (
        dataset(tmp_path, name, sums) for name, sums in [("a", range(3)), ("b", range(2))]
    )
    assert shared_rows(Volume(tmp_path), held, train) == 0
    grown = held.model_copy(update={"segments": held.segments + train.segments})
    assert shared_rows(Volume(tmp_path), grown, train) == 3
