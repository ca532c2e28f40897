"""Files of answered rows: Parquet, compressed with zstd, a part for as many rows as had come.

A row is in exactly one part. Only the columns that are asked for are read, and of a page only the
row groups that hold it.
"""

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from services.contracts.evaluation import AnsweredRow, AnsweredSample
from services.contracts.scores import ScoreStatus
from services.runtime.logs import get_logger
from services.volume import fsync, written_beside

log = get_logger(__name__)

Verdict = Literal["correct", "wrong", "mixed", "unscored"]
"""Of a row: all samples correct, none, some; or none could be scored."""

ROW_GROUP = 64
"""Rows that are decoded to show one of them."""
COLUMNS = pa.schema(
    [
        ("row", pa.int64()),
        ("category", pa.string()),
        ("prompt", pa.string()),
        ("reference", pa.string()),  # JSON
        ("texts", pa.list_(pa.string())),
        ("tokens", pa.list_(pa.int32())),
        ("truncated", pa.list_(pa.bool_())),
        ("rewards", pa.list_(pa.float64())),
        ("statuses", pa.list_(pa.string())),
        ("components", pa.string()),  # JSON, a list of objects
        ("reasons", pa.string()),  # JSON, a list of objects; older files have none
        ("error", pa.string()),
    ]
)
MEASURED = ["row", "category", "tokens", "truncated", "rewards", "statuses"]


class DamagedAnswers(ValueError):
    """A file of answers is no Parquet file of theirs; the message names it."""


@dataclass(frozen=True)
class Measured:
    """A row's answers without their texts; lists have one entry a sample, and none where the row
    could not be answered."""

    row: int
    category: str | None
    tokens: list[int]
    truncated: list[bool]
    rewards: list[float | None]
    statuses: list[str]

    @property
    def correct(self) -> int:
        """Samples that are."""
        return self.statuses.count(ScoreStatus.CORRECT)

    @property
    def verdict(self) -> Verdict:
        """What its samples are together."""
        if all(status == ScoreStatus.ERROR for status in self.statuses):
            return "unscored"
        if self.correct == len(self.statuses):
            return "correct"
        return "mixed" if self.correct else "wrong"


@dataclass(frozen=True)
class Page:
    """Some answered rows, in the dataset's order."""

    rows: list[AnsweredRow]
    total: int
    """Rows that match."""


def part_path(folder: Path, number: int) -> Path:
    """Where part `number` of an evaluation's answers is; the first is 1."""
    return folder / f"part-{number:05d}.parquet"


def write_part(
    path: Path, rows: Sequence[AnsweredRow], before_rename: Callable[[], None] = lambda: None
) -> None:
    """Write answered rows durably, in place of a file that is there. `before_rename` may raise to
    leave that."""
    table = pa.Table.from_pylist([_columns_of(row) for row in rows], schema=COLUMNS)
    sink = io.BytesIO()
    pq.write_table(
        table, sink, compression="zstd", row_group_size=ROW_GROUP, write_page_checksum=True
    )
    with written_beside(path) as beside:
        beside.write_bytes(sink.getbuffer())
        fsync(beside)
        before_rename()


def copy_parts(source: Path, folder: Path) -> tuple[int, list[int]]:
    """Copy the files of answers in `source` durably; one that cannot be read is left out. Returns
    how many there are in `folder` then, and the rows in them."""
    rows: list[int] = []
    copied = 0
    for path in sorted(source.glob("part-*.parquet")):
        try:
            whole = pq.read_table(path, page_checksum_verification=True)
            found = whole.column("row").to_pylist()
        except (KeyError, ValueError, OSError) as error:
            # Of what is in the file; the disk's own errors have a number.
            if getattr(error, "errno", None) is not None:
                raise
            log.warning("answers are not kept", file=str(path), error=str(error))
            continue
        copied, rows = copied + 1, rows + found
        with written_beside(part_path(folder, copied)) as beside:
            shutil.copyfile(path, beside)
    return copied, rows


def measured(folder: Path, parts: int | None = None) -> list[Measured]:
    """All answered rows by number, without their texts. `parts`: only of the first so many."""
    return [one for _, _, one in _index(folder, parts)]


def page(
    folder: Path,
    *,
    offset: int,
    limit: int,
    verdict: Verdict | None = None,
    category: str | None = None,
    row: int | None = None,
    parts: int | None = None,
) -> Page:
    """Up to `limit` of the rows that match, from the one with place `offset` among them on."""
    found = [
        (path, at)
        for path, at, one in _index(folder, parts)
        if (verdict is None or one.verdict == verdict)
        and (category is None or one.category == category)
        and (row is None or one.row == row)
    ]
    wanted = found[offset : offset + limit]
    tables: dict[tuple[Path, int], list[dict[str, Any]]] = {}
    for path, at in wanted:
        group = at // ROW_GROUP
        if (path, group) not in tables:
            with _decoding(path):
                tables[path, group] = pq.ParquetFile(path).read_row_group(group).to_pylist()
    shown = [_row_of(tables[path, at // ROW_GROUP][at % ROW_GROUP]) for path, at in wanted]
    return Page(shown, len(found))


def _index(folder: Path, parts: int | None) -> list[tuple[Path, int, Measured]]:
    """(part, place in it, row) of all rows, by number."""
    paths = sorted(folder.glob("part-*.parquet"))[:parts]
    found = [(path, at, one) for path in paths for at, one in enumerate(_measured(path))]
    return sorted(found, key=lambda one: one[2].row)


def _measured(path: Path) -> Iterator[Measured]:
    with _decoding(path):
        rows = pq.read_table(path, columns=MEASURED).to_pylist()
    for row in rows:
        yield Measured(**row)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Raise DamagedAnswers for what is in the file; the disk's own errors have a number."""
    try:
        yield
    except (ValueError, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedAnswers(f"{path.name} is damaged: {str(error)[:200]}") from None


def _columns_of(one: AnsweredRow) -> dict[str, Any]:
    return {
        "row": one.row,
        "category": one.category,
        "prompt": one.prompt,
        "reference": json.dumps(one.reference),
        "texts": [sample.text for sample in one.samples],
        "tokens": [sample.tokens for sample in one.samples],
        "truncated": [sample.truncated for sample in one.samples],
        "rewards": [sample.reward for sample in one.samples],
        "statuses": [sample.status for sample in one.samples],
        "components": json.dumps([sample.components for sample in one.samples]),
        "reasons": json.dumps([sample.reasons for sample in one.samples]),
        "error": one.error,
    }


def _row_of(found: dict[str, Any]) -> AnsweredRow:
    columns = ("texts", "tokens", "truncated", "rewards", "statuses")
    components = json.loads(found["components"])
    reasons = json.loads(found["reasons"]) if "reasons" in found else [{} for _ in components]
    lists = (*(found[name] for name in columns), components, reasons)
    fields = ("text", "tokens", "truncated", "reward", "status", "components", "reasons")
    return AnsweredRow(
        row=found["row"],
        category=found["category"],
        prompt=found["prompt"],
        reference=json.loads(found["reference"]),
        samples=[
            AnsweredSample(**dict(zip(fields, values, strict=True)))
            for values in zip(*lists, strict=True)
        ],
        error=found["error"],
    )
