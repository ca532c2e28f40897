"""Files of answered rows: Parquet with zstd, one part for the rows that came together.

A row is in exactly one part. A page reads only the requested columns of the row groups that it
shows.
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
"""A row's verdict: all samples correct, none, some; or none could be scored."""

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
LISTS = {
    "texts": "text",
    "tokens": "tokens",
    "truncated": "truncated",
    "rewards": "reward",
    "statuses": "status",
}
"""Columns with an entry for each sample, and the sample's field."""
MEASURED = ["row", "category", "tokens", "truncated", "rewards", "statuses"]


class DamagedAnswers(ValueError):
    """A file of answers is damaged; the message names it."""


@dataclass(frozen=True)
class Measured:
    """A row's answers without their texts. Lists have one entry for each sample; they are empty if
    the row could not be answered."""

    row: int
    category: str | None
    tokens: list[int]
    truncated: list[bool]
    rewards: list[float | None]
    statuses: list[str]

    @property
    def correct(self) -> int:
        return self.statuses.count(ScoreStatus.CORRECT)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all samples of the row."""
        if all(status == ScoreStatus.ERROR for status in self.statuses):
            return "unscored"
        if self.correct == len(self.statuses):
            return "correct"
        return "mixed" if self.correct else "wrong"


@dataclass(frozen=True)
class Page:
    """A page of answered rows, in the dataset's order."""

    rows: list[AnsweredRow]
    total: int
    """Number of rows that match."""
    more: bool
    """Whether matching rows come after these."""


def part_path(folder: Path, number: int) -> Path:
    """Return the path of part `number` of an evaluation's answers; the first is 1."""
    return folder / f"part-{number:05d}.parquet"


def write_part(
    path: Path, rows: Sequence[AnsweredRow], before_rename: Callable[[], None] = lambda: None
) -> None:
    """Write answered rows durably, replacing an existing file. `before_rename` may raise to cancel
    that."""
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
    """Copy the files of answers in `source` durably, without unreadable ones. Returns the number of
    files that `folder` then has, and the rows in them."""
    rows: list[int] = []
    copied = 0
    for path in sorted(source.glob("part-*.parquet")):
        try:
            whole = pq.read_table(path, page_checksum_verification=True)
            answered = whole.column("row").to_pylist()
        except (KeyError, ValueError, OSError) as error:
            # An OSError without a number is about the file's content, not the disk.
            if getattr(error, "errno", None) is not None:
                raise
            log.warning("answers are not kept", file=str(path), error=str(error))
            continue
        copied, rows = copied + 1, rows + answered
        with written_beside(part_path(folder, copied)) as beside:
            shutil.copyfile(path, beside)
    return copied, rows


def measured(folder: Path, parts: int | None = None) -> list[Measured]:
    """Return all answered rows in the order of their numbers, without their texts. `parts`: read
    only this many of the first part files."""
    return [row for _, _, row in _index(folder, parts)]


def read_page(
    folder: Path,
    *,
    after: int = -1,
    limit: int,
    verdict: Verdict | None = None,
    category: str | None = None,
    row: int | None = None,
    parts: int | None = None,
) -> Page:
    """Return a page of up to `limit` matching rows with higher numbers than `after`."""
    rows = [
        (path, at, match.row)
        for path, at, match in _index(folder, parts)
        if (verdict is None or match.verdict == verdict)
        and (category is None or match.category == category)
        and (row is None or match.row == row)
    ]
    following = [(path, at) for path, at, number in rows if number > after]
    wanted = following[:limit]
    tables: dict[tuple[Path, int], list[dict[str, Any]]] = {}
    for path, at in wanted:
        group = at // ROW_GROUP
        if (path, group) not in tables:
            with _decoding(path):
                tables[path, group] = pq.ParquetFile(path).read_row_group(group).to_pylist()
    shown = [_row_of(tables[path, at // ROW_GROUP][at % ROW_GROUP]) for path, at in wanted]
    return Page(shown, len(rows), len(following) > limit)


def _index(folder: Path, parts: int | None) -> list[tuple[Path, int, Measured]]:
    """Return (part, place in it, row) of all rows, by number."""
    paths = sorted(folder.glob("part-*.parquet"))[:parts]
    rows = [
        (path, at, measured_row)
        for path in paths
        for at, measured_row in enumerate(_measured(path))
    ]
    return sorted(rows, key=lambda measured_row: measured_row[2].row)


def _measured(path: Path) -> Iterator[Measured]:
    with _decoding(path):
        rows = pq.read_table(path, columns=MEASURED).to_pylist()
    for row in rows:
        yield Measured(**row)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Raise DamagedAnswers for bad content. Errors of the disk, which have a number, pass
    through."""
    try:
        yield
    except (ValueError, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedAnswers(f"{path.name} is damaged: {str(error)[:200]}") from None


def _columns_of(answer: AnsweredRow) -> dict[str, Any]:
    return {
        "row": answer.row,
        "category": answer.category,
        "prompt": answer.prompt,
        "reference": json.dumps(answer.reference),
        **{name: [getattr(s, field) for s in answer.samples] for name, field in LISTS.items()},
        "components": json.dumps([sample.components for sample in answer.samples]),
        "reasons": json.dumps([sample.reasons for sample in answer.samples]),
        "error": answer.error,
    }


def _row_of(cells: dict[str, Any]) -> AnsweredRow:
    fields = {field: cells[name] for name, field in LISTS.items()}
    fields["components"] = json.loads(cells["components"])
    fields["reasons"] = json.loads(cells.get("reasons", "[]")) or [{} for _ in cells["texts"]]
    return AnsweredRow(
        row=cells["row"],
        category=cells["category"],
        prompt=cells["prompt"],
        reference=json.loads(cells["reference"]),
        samples=[
            AnsweredSample(**dict(zip(fields, values, strict=True)))
            for values in zip(*fields.values(), strict=True)
        ],
        error=cells["error"],
    )
