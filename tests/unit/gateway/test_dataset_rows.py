"""Rows for agents: what is read of a dataset's files, and when."""

from pathlib import Path

import pytest

from services.contracts.records import DatasetRecord, DatasetSegment
from services.contracts.rows.dataset import Row
from services.contracts.weights import WeightFile
from services.datasets.segments import write_segment
from services.gateway.sessions import dataset_rows
from services.gateway.sessions.dataset_rows import DatasetRows
from services.volume import DamagedFile, Volume


class Counting(Volume):
    """A volume that knows which files were checked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.checked: list[str] = []

    async def fetch(self, file: WeightFile | str) -> Path:
        assert isinstance(file, WeightFile)
        self.checked.append(file.name)
        return await super().fetch(file)


def segment(root: Path, *prompts: str) -> DatasetSegment:
    return write_segment([Row(prompt=prompt, answer="") for prompt in prompts], root, "d")


def record(*segments: DatasetSegment, id: str = "d") -> DatasetRecord:
    rows = sum(segment.rows for segment in segments)
    return DatasetRecord(id=id, name=id, rows=rows, created=1.0, segments=list(segments))


async def test_a_file_is_checked_once_however_often_rows_are_leased(tmp_path: Path) -> None:
    volume = Counting(tmp_path)
    rows, a, b = DatasetRows(volume), segment(tmp_path, "a", "b"), segment(tmp_path, "c")
    for index, prompt in enumerate("abab"):
        assert (await rows.row(record(a), index % 2)).prompt == prompt
    assert volume.checked == [a.file]
    assert (await rows.row(record(a, b), 2)).prompt == "c"
    assert volume.checked == [a.file, b.file]


async def test_a_dataset_that_was_deleted_and_grew_otherwise_is_read_anew(tmp_path: Path) -> None:
    rows, a = DatasetRows(Volume(tmp_path)), segment(tmp_path, "a")
    assert (await rows.row(record(a, segment(tmp_path, "b")), 1)).prompt == "b"
    assert (await rows.row(record(a, segment(tmp_path, "c")), 1)).prompt == "c"


async def test_a_damaged_file_is_refused_each_time(tmp_path: Path) -> None:
    rows, a = DatasetRows(Volume(tmp_path)), segment(tmp_path, "a")
    path = tmp_path / a.file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    for _ in range(2):
        with pytest.raises(DamagedFile):
            await rows.row(record(a), 0)
    path.write_bytes(whole)
    assert (await rows.row(record(a), 0)).prompt == "a"


async def test_files_of_a_few_datasets_are_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_rows, "KEPT_OPEN", 2)
    rows, a = DatasetRows(Volume(tmp_path)), segment(tmp_path, "a")
    for id in "abcab":
        await rows.row(record(a, id=id), 0)
    assert list(rows._readers) == ["a", "b"]
