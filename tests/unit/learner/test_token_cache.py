"""Rows are tokenised once, by content, and anything that a crash left behind is built again."""

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from learner.batch.sft_rows import RowTokenizer, UnusableRow
from learner.persist.disk_retry import Disk
from learner.sft_data import token_cache
from learner.sft_data.token_cache import TokenCache, cache_key
from learner.slices import WHOLE, RankPart
from services.contracts.config.data import SFTData
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.volume import Volume
from tests.unit.learner.policies import tiny_model

DATA = SFTData(dataset="d", template="{prompt}=")


class Counting(RowTokenizer):
    """A tokenizer that counts its rows."""

    count = 0

    def row(self, row: Row, index: int) -> Any:
        self.count += 1
        return super().row(row, index)


class Quiet:
    """A run that is never cancelled."""

    def cancelled(self) -> bool:
        return False


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    monkeypatch.setattr(token_cache, "ROWS", 4)
    monkeypatch.setattr(token_cache, "BATCH_ROWS", 3)
    return Volume(tmp_path)


def dataset(volume: Volume, *segments: list[Row]) -> DatasetRecord:
    written = [append_rows(volume.root, "d", rows) for rows in segments]
    rows = sum(len(some) for some in segments)
    return DatasetRecord(id="d", name="d", rows=rows, created=time.time(), segments=written)


def built(volume: Volume, record: DatasetRecord, part: RankPart = WHOLE) -> tuple[TokenCache, int]:
    """The cache, and the number of rows that were tokenised."""
    tokenizer = tiny_model().tokenizer
    cache = TokenCache(volume, record, cache_key(tokenizer, DATA))
    counting = Counting(tokenizer, DATA)
    disk = Disk(volume.root, Quiet(), threading.Event())  # type: ignore[arg-type]
    assert cache.build(counting, part, disk, lambda done, rows: False)
    return cache, counting.count


ROWS = [Row(prompt=f"{n}+{n}" * (1 + n % 3), answer=str(2 * n)) for n in range(10)]


def test_rows_come_back_as_they_were_made_and_are_made_once(volume: Volume) -> None:
    record = dataset(volume, ROWS[:6], ROWS[6:])
    cache, made = built(volume, record)
    again, remade = built(volume, record)

    assert (made, remade) == (10, 0)
    plain = RowTokenizer(tiny_model().tokenizer, DATA)
    lengths, largest = again.lengths()
    for n, row in enumerate(ROWS):
        expected, found = plain.row(row, n), cache.row(n)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.spans.tolist() == expected.spans.tolist()
        assert found.sizes.tolist() == expected.sizes.tolist()
        assert (lengths.tokens[n], lengths.first[n]) == (len(expected.tokens), expected.spans[0][0])
    assert largest == max(max(plain.row(row, 0).tokens) for row in ROWS)


def test_a_damaged_file_is_made_again_and_the_others_stay(volume: Volume) -> None:
    record = dataset(volume, ROWS)
    built(volume, record)
    files = sorted(volume.root.glob("datasets/d/tokens/*/*.arrow"))
    assert len(files) == 3
    files[1].write_bytes(files[1].read_bytes()[:100])
    files[2].unlink()
    torn = files[2].with_name(f".{files[2].name}.killed")
    torn.write_bytes(b"half")

    assert built(volume, record)[1] == 6
    assert not torn.exists()


def test_lengths_are_known_without_reading_the_tokens(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset may have a hundred gigabytes of them."""
    cache, _ = built(volume, dataset(volume, ROWS))
    _, largest = cache.lengths()

    def mapped(column: Any) -> tuple[Any, Any]:
        values = None if column.type == pa.large_list(pa.uint32()) else column.values.to_numpy()
        return column.offsets.to_numpy(), values

    monkeypatch.setattr(token_cache, "_column", mapped)
    assert cache.lengths()[1] == largest > 0


def test_ranks_that_look_one_after_the_other_make_all_files(volume: Volume) -> None:
    record = dataset(volume, ROWS)
    assert [built(volume, record, RankPart(rank, 2))[1] for rank in (0, 1)] == [4 + 2, 4]
    assert len(built(volume, record, RankPart(0, 2))[0].lengths()[0].tokens) == len(ROWS)


def test_new_rows_alone_are_made_later(volume: Volume) -> None:
    first = dataset(volume, ROWS[:8])
    built(volume, first)
    grown = first.model_copy(
        update={"rows": 10, "segments": [*first.segments, *dataset(volume, ROWS[8:]).segments]}
    )
    assert built(volume, grown)[1] == 2


def test_the_key_covers_everything_that_decides_the_tokens() -> None:
    tokenizer = tiny_model().tokenizer
    key = cache_key(tokenizer, DATA)
    assert cache_key(tiny_model().tokenizer, DATA) == key
    assert cache_key(tokenizer, DATA.model_copy(update={"max_seq_len": 9})) == key
    assert cache_key(tokenizer, DATA.model_copy(update={"template": "{prompt}"})) != key
    assert cache_key(tokenizer, DATA.model_copy(update={"train_on": "all"})) != key
    tokenizer.chat_template = "{{ messages }}"
    assert cache_key(tokenizer, DATA) != key


def test_folders_that_nobody_used_lately_are_deleted(volume: Volume) -> None:
    record = dataset(volume, ROWS)
    for name in "abcde":
        (volume.root / f"datasets/d/tokens/{name}").mkdir(parents=True)
    built(volume, record)
    assert len(list(volume.root.glob("datasets/d/tokens/*"))) == token_cache.KEPT


def test_a_folder_that_another_run_reads_stays_until_that_ends(volume: Volume) -> None:
    """A run of another pool opens its files at any time, days after it began."""
    record = dataset(volume, ROWS)
    key = "of-another-run"
    reading = TokenCache(volume, record, key)
    tokenizer = RowTokenizer(tiny_model().tokenizer, DATA)
    disk = Disk(volume.root, Quiet(), threading.Event())  # type: ignore[arg-type]
    reading.build(tokenizer, WHOLE, disk, lambda done, rows: False)
    reading.lengths()
    tokens = volume.root / "datasets/d/tokens"
    os.utime(tokens / key, (0, 0))
    for name in "abcd":
        (tokens / name).mkdir()

    _, made = built(volume, record)

    assert made == len(ROWS)
    assert reading.row(9).tokens.tolist() == tokenizer.row(ROWS[9], 9).tokens.tolist()

    del reading
    shutil.rmtree(tokens / cache_key(tiny_model().tokenizer, DATA))
    os.utime(tokens / key, (0, 0))
    built(volume, record)
    assert not (tokens / key).exists()


def test_a_row_that_cannot_be_learned_is_named_with_its_dataset(volume: Volume) -> None:
    with pytest.raises(UnusableRow, match="in d, dataset row 5 has no answer to learn"):
        built(volume, dataset(volume, [*ROWS[:5], Row(prompt="1")]))
