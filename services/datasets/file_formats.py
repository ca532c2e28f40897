"""Reading JSONL, CSV, Parquet and tars of JSON files as (place, columns) pairs, one row at a
time. A file of JSON may also be one array of rows. Never holds a file in memory.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, Literal

from services.contracts.strict_json import NotJSON, decode
from services.datasets.bad_rows import OnBadRow
from services.datasets.csv_rows import csv_rows
from services.datasets.json_array import array_elements, is_array
from services.datasets.parquet import parquet_rows
from services.datasets.row_checks import (
    MAX_COLUMNS,
    DatasetError,
    names_in,
    too_many_columns,
)
from services.datasets.tar import tar_rows
from services.datasets.text_lines import text_lines

Format = Literal["jsonl", "csv", "parquet", "tar"]

LOOKED_AT = 100
"""Rows of a file of JSON that are checked for repeated names: programs repeat them in every row."""
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tar": "tar",
    ".tgz": "tar",
}


class UnsupportedFormat(DatasetError):
    """A file of no known format, by its name and its first bytes."""


def guess_format(filename: str, head: bytes) -> Format:
    """Guess the format by the file's first bytes, else by its name. `head`: at least the first 16
    bytes. Raises UnsupportedFormat."""
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:2] == b"PK" or head[:4] == b"\x28\xb5\x2f\xfd":
        raise UnsupportedFormat(f"{filename} is compressed: unpack it and upload what is inside")
    suffix = PurePath(filename).suffix.lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return "jsonl"
    raise UnsupportedFormat(
        f"cannot tell the format of {filename!r}: upload a .jsonl, .json, .csv, .parquet or "
        ".tar file, or name the format (jsonl, csv, parquet, tar)"
    )


def read_rows(
    file: BinaryIO, format: Format, notes: list[str], on_bad: OnBadRow | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows with their place (`line 3`, `row 3`, `element 3`, from 1). Raises DatasetError,
    which names the place. Adds guesses about the format to `notes`. Calls `on_bad`, if given, for
    a line that is no row, and goes on."""
    file.seek(0)
    if format == "parquet":
        yield from parquet_rows(file)
    elif format == "tar":
        yield from tar_rows(file, notes)
    elif format == "csv":
        yield from csv_rows(file, notes, on_bad)
    elif is_array(file):
        for number, (place, value, text) in enumerate(array_elements(file)):
            if number < LOOKED_AT:
                check_names(place, text)
            try:
                row = _row(place, value, "an array holds rows")
            except DatasetError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
            yield place, row
    else:
        yield from _jsonl(file, on_bad)


def _jsonl(file: BinaryIO, on_bad: OnBadRow | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in text_lines(file):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = _row(place, _decoded(number, line), "each line holds one row")
        except DatasetError as error:
            if on_bad is None:
                raise
            on_bad(error)
            continue
        if number <= LOOKED_AT:
            check_names(place, line.encode())
        yield place, row


def _decoded(number: int, line: str) -> Any:
    try:
        return decode(line.encode())
    except NotJSON as error:
        raise DatasetError(
            f"line {number} is not JSON: {_json_reason(number, line, error)}"
        ) from None


def check_names(place: str, text: bytes) -> None:
    """Raise DatasetError if an object in a row repeats a name: JSON readers keep only the last
    value."""

    def pairs(members: list[tuple[str, Any]]) -> None:
        twice = sorted(name for name, count in Counter(n for n, _ in members).items() if count > 1)
        if twice:
            raise DatasetError(
                f"{place} has a column twice: {names_in(dict.fromkeys(twice))}: rename one"
            )

    json.loads(text, object_pairs_hook=pairs)


def _row(place: str, value: Any, holds: str) -> dict[str, Any]:
    """Return `value` if it is an object: a row's columns. Raises DatasetError otherwise."""
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a bare value"
        raise DatasetError(
            f'{place} is {kind}, not an object: {holds}, like {{"prompt": "…", "answer": "…"}}'
        )
    if len(value) > MAX_COLUMNS:
        raise DatasetError(too_many_columns(place, len(value)))
    return value


def _json_reason(number: int, line: str, error: NotJSON) -> str:
    reason = str(error)
    if number == 1 and line.strip() == "{":
        reason = "a row takes several lines; put each on a line of its own with: jq -c . FILE"
    start = line.strip()
    return f"{reason}. It begins: {start[:60]}{'…' if len(start) > 60 else ''}"
