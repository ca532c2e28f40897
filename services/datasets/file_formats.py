"""Reading JSONL, CSV, Parquet and tars of JSON files as (place, columns) pairs, one row at a
time. A file of JSON may also be one array of rows.

Never holds a file in memory. CSV values stay text: a guessed number would turn the answer
`007` into 7. Python's csv module reads them, since it knows the line.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, Literal

from services.contracts.strict_json import NotJSON, decode
from services.datasets.columns import MAX_COLUMNS, MAX_ROW_BYTES, DatasetError, names_in, too_large
from services.datasets.json_array import array_elements, is_array
from services.datasets.parquet import parquet_rows
from services.datasets.tar import tar_rows

Format = Literal["jsonl", "csv", "parquet", "tar"]

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
    """Neither the file's name nor its first bytes are those of a known format."""


def check_encoding(filename: str, head: bytes) -> None:
    """Raise DatasetError for a file that begins as UTF-16 does."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DatasetError(
            f"{filename} is UTF-16: save it as UTF-8, e.g. with iconv -f utf-16 -t utf-8"
        )


def guess_format(filename: str, head: bytes) -> Format:
    """The format by the file's first bytes, else by its name. Raises UnsupportedFormat.

    `head` is the beginning of the file; 16 bytes are enough.
    """
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
        f"cannot tell the format of {filename!r}: upload a .jsonl, .csv or .parquet file, or name "
        "the format (jsonl, csv, parquet, tar)"
    )


def read_rows(
    file: BinaryIO, format: Format, filename: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows with their place (`line 3`, `row 3`, `element 3`, from 1). Raises DatasetError naming
    it."""
    file.seek(0)
    if format == "parquet":
        yield from parquet_rows(file)
    elif format == "tar":
        yield from tar_rows(file)
    elif format == "csv":
        yield from _csv(file, "\t" if filename.lower().endswith(".tsv") else ",")
    elif is_array(file):
        for place, value in array_elements(file):
            yield place, _row(place, value, "an array holds rows")
    else:
        yield from _jsonl(file)


def _jsonl(file: BinaryIO) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            value = decode(line.encode())
        except NotJSON as error:
            raise DatasetError(
                f"line {number} is not JSON: {_json_reason(number, line, error)}"
            ) from None
        yield f"line {number}", _row(f"line {number}", value, "each line holds one row")


def _row(place: str, value: Any, holds: str) -> dict[str, Any]:
    """`value`, which has to be a row's columns."""
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a bare value"
        raise DatasetError(
            f'{place} is {kind}, not an object: {holds}, like {{"prompt": "…", "answer": "…"}}'
        )
    if len(value) > MAX_COLUMNS:
        raise DatasetError(_too_many(place, len(value)))
    return value


def _too_many(place: str, columns: int) -> str:
    return f"{place} has {columns} columns; {MAX_COLUMNS} is the most: leave out what no one needs"


def _json_reason(number: int, line: str, error: NotJSON) -> str:
    reason = str(error)
    if number == 1 and line.strip() == "{":
        reason = "a row takes several lines; put each on a line of its own with: jq -c . FILE"
    start = line.strip()
    return f"{reason}. It begins: {start[:60]}{'…' if len(start) > 60 else ''}"


def _csv(file: BinaryIO, delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    csv.field_size_limit(MAX_ROW_BYTES)
    header: list[str] = []
    before = size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for _, line in _lines(file):
            size += len(line)
            if size > MAX_ROW_BYTES:
                raise DatasetError(too_large(f"the row from line {before + 1} on"))
            yield line

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            # A quoted cell may run over lines; the row is named by the line it starts on.
            line, before, size = before + 1, reader.line_num, 0
            if not cells:
                continue
            if not header:
                header = _header(cells)
                continue
            if len(cells) != len(header):
                raise DatasetError(
                    f"line {line} has {len(cells)} cells, the header has {len(header)} "
                    f"({names_in(dict.fromkeys(header))}): put cells that hold {delimiter!r} or a "
                    "line break in double quotes"
                )
            yield f"line {line}", dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DatasetError(f"line {before + 1} is not CSV: {error}") from None


def _header(cells: list[str]) -> list[str]:
    header = [cell.strip() for cell in cells]
    if len(header) > MAX_COLUMNS:
        raise DatasetError(_too_many("the header (line 1)", len(header)))
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DatasetError(
            f"the header (line 1) names a column twice: {names_in(dict.fromkeys(twice))}"
        )
    return header


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(iter(lambda: file.readline(MAX_ROW_BYTES + 1), b""), 1):
        if len(raw) > MAX_ROW_BYTES:
            raise DatasetError(too_large(f"line {number}"))
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"line {number} is not valid UTF-8 (byte {error.start + 1} of the line is "
                f"0x{line[error.start]:02x}): save the file as UTF-8, e.g. with "
                "iconv -f latin1 -t utf-8"
            ) from None
