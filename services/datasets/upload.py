"""Turn uploaded files, or a list of prompts, into one segment.

Nothing is visible on the data volume until every row is accepted.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from services.contracts.records import DatasetSegment
from services.contracts.rows.dataset import Row
from services.datasets.columns import ColumnMapping
from services.datasets.conversion import Conversion, SourceFile
from services.datasets.file_formats import Format
from services.datasets.known_files import KnownFile
from services.datasets.row_checks import DatasetError, check_columns, check_prompt
from services.datasets.segments import (
    publish,
    unpublished_file,
    write_rows,
    write_segment,
)
from services.datasets.shards import missing_shards, mixed_sets
from services.volume import checksum

EXPANSION = 100
"""How many times its size a file may take as rows. Text compresses to a tenth."""
LEAST_BYTES = 64 << 20
"""Bytes that a file may take, however small it is."""


@dataclass(frozen=True)
class Converted:
    """The result of a conversion: rows that are written and not published yet."""

    rows: int
    mapping: ColumnMapping | str
    """The columns that were used, guesses made; or the name of a well-known file."""
    left_over: list[str]
    """Columns with values that are in neither prompt nor answer."""
    duplicates: int
    """Rows whose prompt and answer an earlier row has."""
    notes: list[str]
    """Guesses about how the files are read."""
    warnings: list[str]
    """Probable mistakes, each with a count."""
    left_out: int = 0
    """Bad rows that were skipped."""


@dataclass(frozen=True, kw_only=True)
class Imported(Converted):
    """The result of an import: a published segment."""

    id: str
    """The same for the same name, rows and mapping, wherever and whenever it is imported."""
    segment: DatasetSegment


def convert(
    files: Sequence[SourceFile],
    path: Path,
    format: Format | None,
    mapping: ColumnMapping | KnownFile,
    most: int,
    *,
    skips_bad_rows: bool = False,
) -> Converted:
    """Write the rows of `files`, in their order, to the file at `path`.

    `format` None: by each file's first bytes and name. `most`: bytes that the rows and an unpacked
    file may take. `skips_bad_rows`: leave out rows that cannot be used, with a warning. Raises
    DatasetError (UnsupportedFormat for an unknown format) and MemoryError.
    """
    conversion = Conversion(files, format, mapping, most, skips_bad_rows=skips_bad_rows)
    rows = write_rows(conversion.rows(), path, most)
    conversion.check_columns()
    used, findings = conversion.mapping, conversion.findings
    names, bad = [source.name for source in files], conversion.bad_rows
    return Converted(
        rows,
        used.name if isinstance(used, KnownFile) else used,
        findings.left_over(),
        findings.duplicates,
        conversion.notes,
        bad.warnings() + missing_shards(names) + mixed_sets(names) + findings.warnings(),
        bad.count,
    )


def import_files(
    root: Path,
    files: Sequence[SourceFile],
    name: str,
    format: Format | None = None,
    mapping: ColumnMapping | KnownFile | None = None,
    *,
    skips_bad_rows: bool = False,
) -> Imported:
    """Convert files that can be trusted, or are small, into the first segment of the dataset `name`
    under `root`. Raises as `convert`, and then leaves no file."""
    path = unpublished_file(root)
    try:
        converted = convert(
            files,
            path,
            format,
            mapping or ColumnMapping(),
            most_row_bytes(size_of(files)),
            skips_bad_rows=skips_bad_rows,
        )
        return published(root, name, path, converted)
    finally:
        path.unlink(missing_ok=True)


def published(root: Path, name: str, path: Path, converted: Converted) -> Imported:
    """Move the rows at `path` to their place, durably."""
    xxh3 = checksum(path)
    dataset = dataset_id(name, xxh3)
    segment = publish(path, xxh3, converted.rows, root, dataset)
    return Imported(**vars(converted), id=dataset, segment=segment)


def most_row_bytes(size: int, quota: int | None = None) -> int:
    """Return the most bytes that the rows of files of this `size` may take, at most `quota`."""
    allowed = max(LEAST_BYTES, EXPANSION * size)
    return allowed if quota is None else min(allowed, max(LEAST_BYTES, quota))


def size_of(files: Sequence[SourceFile]) -> int:
    """Return the bytes of all files together."""
    return sum(source.file.seek(0, os.SEEK_END) for source in files)


def append_rows(root: Path, dataset: str, rows: Iterable[Row]) -> DatasetSegment:
    """Write `rows` as a new segment of `dataset`. Raises DatasetError for an unusable prompt or no
    rows."""

    def checked() -> Iterator[Row]:
        number = 0
        for number, row in enumerate(rows, 1):
            check_prompt(f"prompt {number}", row.prompt)
            check_columns(f"prompt {number}", row.columns)
            yield row
        if not number:
            raise DatasetError("no prompts were given")

    return write_segment(checked(), root, dataset)


def dataset_id(name: str, xxh3: str) -> str:
    """Return 16 hex digits from the dataset's name and the checksum of its first segment. The name
    keeps two datasets apart that begin with the same rows."""
    return xxhash.xxh3_64_hexdigest(f"{name}\0{xxh3}".encode())
