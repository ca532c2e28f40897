"""From uploaded files, or a list of prompts, to one segment.

Nothing is visible on the data volume until every row is accepted.
"""

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
from services.datasets.segments import write_segment
from services.datasets.shards import missing_shards


@dataclass(frozen=True)
class Imported:
    """Imported files."""

    id: str
    """The same for the same name, rows and mapping, wherever and whenever it is imported."""
    segment: DatasetSegment
    mapping: ColumnMapping | KnownFile
    """The columns that were used, guesses made."""
    left_over: list[str]
    """Columns with values that are in neither prompt nor answer."""
    duplicates: int
    """Rows whose prompt and answer an earlier row has."""
    notes: list[str]
    """Guesses about how the files are read."""
    warnings: list[str]
    """Probable mistakes, each with a count."""


def import_files(
    root: Path,
    files: Sequence[SourceFile],
    name: str,
    format: Format | None = None,
    mapping: ColumnMapping | KnownFile | None = None,
) -> Imported:
    """Convert `files`, in their order, into the first segment of the dataset `name` under `root`.

    `format` None: by each file's first bytes and name. Raises DatasetError (UnsupportedFormat for
    an unknown format) and then leaves no file.
    """
    conversion = Conversion(files, format, mapping or ColumnMapping())
    with write_segment(conversion.rows(), root) as written:
        conversion.check_columns()
        dataset = dataset_id(name, written.xxh3)
        segment = written.publish(root, dataset)
    findings = conversion.findings
    return Imported(
        dataset,
        segment,
        conversion.mapping,
        findings.left_over(),
        findings.duplicates,
        conversion.notes,
        missing_shards([one.name for one in files]) + findings.warnings(),
    )


def append_rows(root: Path, dataset: str, rows: Iterable[Row]) -> DatasetSegment:
    """Write `rows` as a new segment of `dataset`. Raises DatasetError for an unusable prompt or no
    rows."""

    def checked() -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            check_prompt(f"prompt {number}", row.prompt)
            check_columns(f"prompt {number}", row.columns)
            yield row

    with write_segment(checked(), root) as written:
        if not written.rows:
            raise DatasetError("no prompts were given")
        return written.publish(root, dataset)


def dataset_id(name: str, xxh3: str) -> str:
    """16 hex digits from the dataset's name and the checksum of its first segment. Two datasets may
    start with the same rows."""
    return xxhash.xxh3_64_hexdigest(f"{name}\0{xxh3}".encode())
