"""From an uploaded file, or a list of prompts, to one segment.

Nothing is visible on the data volume until every row is accepted.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import xxhash

from services.contracts.records import DatasetSegment
from services.contracts.rows.dataset import Row
from services.datasets.columns import (
    ColumnMapping,
    DatasetError,
    check_columns,
    check_prompt,
    guessed_answer,
    row_from,
)
from services.datasets.file_formats import Format, check_encoding, guess_format, read_rows
from services.datasets.known_files import KnownFile
from services.datasets.segments import write_segment
from services.datasets.unpacking import MAGIC, Unpacked


@dataclass(frozen=True)
class Imported:
    """An imported file."""

    id: str
    """The same for the same name, rows and mapping, wherever and whenever it is imported."""
    segment: DatasetSegment
    mapping: ColumnMapping | KnownFile
    """The columns that were used, guesses made."""
    duplicates: int
    """Rows whose prompt and answer an earlier row of the file has."""


def import_file(
    root: Path,
    file: BinaryIO,
    filename: str,
    name: str,
    format: Format | None = None,
    mapping: ColumnMapping | KnownFile | None = None,
) -> Imported:
    """Convert `file` (seekable) into the first segment of the dataset `name` under `root`.

    `format` None: by the file's first bytes and name. Raises DatasetError (UnsupportedFormat for
    an unknown format) and then leaves no file.
    """
    file.seek(0)
    head = file.read(16)
    if head.startswith(MAGIC):
        file = cast(BinaryIO, Unpacked(file, filename))
        filename = filename.removesuffix(".gz")
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
    resolved = mapping or ColumnMapping()
    if isinstance(resolved, ColumnMapping):
        resolved = resolved.resolved(first[1], first[0] if own_columns else None)
    hashes = array("Q")

    def checked() -> Iterator[Row]:
        for place, source in chain([first], pairs):
            if isinstance(resolved, KnownFile):
                row = resolved.row(place, source)
            else:
                if own_columns and resolved.answer is None:
                    _check_unanswered(place, source, resolved, first[0])
                row = row_from(place, source, resolved)
            hashes.append(xxhash.xxh3_64_intdigest(msgspec.json.encode([row.prompt, row.answer])))
            yield row

    with write_segment(checked(), root) as written:
        dataset = dataset_id(name, written.xxh3)
        segment = written.publish(root, dataset)
    duplicates = len(hashes) - len(np.unique(np.frombuffer(hashes, np.uint64)))
    return Imported(dataset, segment, resolved, duplicates)


def _check_unanswered(
    place: str, source: dict[str, Any], mapping: ColumnMapping, first: str
) -> None:
    """Raise DatasetError if a row has an answer but the first row, which decides the mapping, has
    none: the answer would end up in the unmapped columns."""
    assert mapping.prompt is not None
    if name := guessed_answer(source, mapping.prompt):
        raise DatasetError(
            f"{first} has no answer, and {place} has one (column {name!r}): give every row one, "
            "null where there is none"
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
