"""One uploaded file, or a handful of prompts, to one segment.

Nothing is visible on the data volume until every row has been accepted.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import xxhash
from msgspec.structs import asdict

from services.contracts.dataset import Row
from services.contracts.records import DatasetSegment
from services.datasets.columns import (
    ColumnMapping,
    DatasetError,
    check_prompt,
    check_unanswered,
    row_from,
)
from services.datasets.segments import write_segment
from services.datasets.sources import Format, check_encoding, guess_format, read_rows


@dataclass(frozen=True)
class Imported:
    """What became of a file."""

    id: str
    """The same for the same name, rows and mapping, wherever and whenever it is imported."""
    segment: DatasetSegment
    mapping: ColumnMapping
    """The columns that were used, guesses made."""


def import_file(
    root: Path,
    file: BinaryIO,
    filename: str,
    name: str,
    format: Format | None = None,
    mapping: ColumnMapping | None = None,
) -> Imported:
    """Convert `file` (seekable) into the first segment of the dataset `name` under `root`.

    `format` None: by the file's first bytes and name. Raises DatasetError (UnsupportedFormat
    where the format is the problem) and leaves nothing behind then.
    """
    file.seek(0)
    head = file.read(16)
    if not head:
        raise DatasetError(f"{filename} is empty: it has no rows")
    check_encoding(filename, head)
    format = format or guess_format(filename, head)
    pairs = read_rows(file, format, filename)
    first = next(pairs, None)
    if first is None:
        raise DatasetError(f"{filename} has no rows")
    own_columns = format == "jsonl"
    resolved = (mapping or ColumnMapping()).resolved(first[1], first[0] if own_columns else None)

    def checked() -> Iterator[Row]:
        for place, source in chain([first], pairs):
            if own_columns and resolved.answer is None:
                rest = {key: value for key, value in source.items() if key != resolved.prompt}
                check_unanswered(place, rest, first[0])
            yield row_from(place, source, resolved)

    with write_segment(checked(), root) as written:
        dataset = dataset_id(name, written.xxh3)
        return Imported(dataset, written.publish(root, dataset), resolved)


def append_rows(root: Path, dataset: str, rows: Iterable[Row]) -> DatasetSegment:
    """Write `rows` as a further segment of `dataset`. Raises DatasetError for an unusable prompt
    or where there are no rows."""

    def checked() -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            check_prompt(f"prompt {number}", row.prompt)
            _check_text(f"prompt {number}", row)
            yield row

    with write_segment(checked(), root) as written:
        if not written.rows:
            raise DatasetError("no prompts were given")
        return written.publish(root, dataset)


def _check_text(place: str, row: Row) -> None:
    """What Python's JSON takes and JSON does not. An uploaded file's own reader refuses it."""
    try:
        json.dumps(asdict(row), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DatasetError(f"{place} holds half of a surrogate pair, which is no text") from None
    except ValueError:
        raise DatasetError(f"{place} holds NaN or Infinity, which JSON has no word for") from None


def dataset_id(name: str, xxh3: str) -> str:
    """16 hex digits from the dataset's name and the checksum of its first segment.

    The name belongs to it: two datasets may start with the same rows and grow apart.
    """
    return xxhash.xxh3_64_hexdigest(f"{name}\0{xxh3}".encode())
