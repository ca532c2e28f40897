"""Rows of a CSV file, with whatever its cells are separated by. Values stay text: a guessed number
would turn the answer `007` into 7. Python's csv module reads them, since it knows the line.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

from services.datasets.bad_rows import OnBadRow
from services.datasets.columns import ANSWER_NAMES, PROMPT_NAMES
from services.datasets.row_checks import (
    MAX_COLUMNS,
    MAX_ROW_BYTES,
    DatasetError,
    names_in,
    too_large,
    too_many_columns,
)
from services.datasets.text_lines import text_lines

DELIMITERS = (",", ";", "\t", "|", ":")
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", ":": "colons"}
LOOKED_AT = 100
"""Lines by which the delimiter is chosen."""
LOOKED_AT_CHARS = 1 << 18


def csv_rows(
    file: BinaryIO, notes: list[str], on_bad: OnBadRow | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows with their place (`line 3`, from 1). Raises DatasetError, which names the place.
    Adds the delimiter to `notes` unless it is a comma, and calls `on_bad`, if given, for rows with
    another number of cells than the header."""
    csv.field_size_limit(MAX_ROW_BYTES)
    source = (line for _, line in text_lines(file))
    lines = _first_lines(source)
    # Excel writes and reads this line before the header.
    named = lines[0].rstrip("\r\n").strip('"') if lines else ""
    before = int(named[:4].lower() == "sep=" and len(named) == 5)
    delimiter = named[4] if before else _delimiter(lines)
    if delimiter != ",":
        notes.append(f"the cells are separated by {_named(delimiter)}")
    yield from _rows(chain(lines[before:], source), delimiter, before, on_bad)


def _first_lines(source: Iterator[str]) -> list[str]:
    """Return the lines by which the delimiter is chosen."""
    lines: list[str] = []
    for line in islice(source, LOOKED_AT):
        lines.append(line)
        if sum(map(len, lines)) > LOOKED_AT_CHARS:
            break
    return lines


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter that gives all rows as many cells as the header. If several delimiters
    do, or none does, the header decides: by well-known column names, then by its number of
    cells."""
    ranks = []
    for delimiter in DELIMITERS:
        try:
            records = [cells for cells in csv.reader(lines, delimiter=delimiter) if cells]
        except csv.Error:
            continue
        # The last record may go on behind these lines.
        complete = records[1:-1] if len(records) > 2 else records[1:]
        if not records or len(records[0]) < 2:
            continue
        header = [cell.strip().lower() for cell in records[0]]
        fits = all(len(cells) == len(header) for cells in complete)
        known = len({*PROMPT_NAMES, *ANSWER_NAMES} & set(header))
        ranks.append(((fits, known, len(header)), delimiter))
    return max(ranks, key=lambda rank: rank[0])[1] if ranks else ","


def _rows(
    source: Iterator[str], delimiter: str, before: int, on_bad: OnBadRow | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """`before`: lines of the file before these."""
    header: list[str] = []
    start, size = before, 0

    def lines() -> Iterator[str]:
        nonlocal size
        for line in source:
            size += len(line)
            if size > MAX_ROW_BYTES:
                raise DatasetError(too_large(f"the row from line {start + 1} on"))
            yield line

    # A header written `question, answer` is followed by rows written so.
    spaced, source = _is_spaced(source, delimiter)
    reader = csv.reader(lines(), delimiter=delimiter, strict=True, skipinitialspace=spaced)
    try:
        for cells in reader:
            # A quoted cell may run over lines; the row is named by the line it starts on.
            line, start, size = start + 1, before + reader.line_num, 0
            if not cells:
                continue
            if not header:
                header = _header(cells, line)
                continue
            if len(cells) != len(header):
                error = DatasetError(
                    f"line {line} has {len(cells)} cells, the header has {len(header)} "
                    f"({names_in(dict.fromkeys(header))}), separated by {_named(delimiter)}: put "
                    f"cells that hold {delimiter!r} or a line break in double quotes"
                )
                if on_bad is None:
                    raise error
                on_bad(error)
                continue
            yield f"line {line}", dict(zip(header, cells, strict=True))
    except csv.Error as broken:
        reason = f"{broken}"
        if "new-line character" in reason:
            reason = "its lines end with a carriage return alone; let them end with a line feed"
        raise DatasetError(f"line {start + 1} is not CSV: {reason}") from None


def _is_spaced(source: Iterator[str], delimiter: str) -> tuple[bool, Iterator[str]]:
    """Whether a space follows each delimiter of the first line with text. Also return an iterator
    over all lines, since `source` was read."""
    before = []
    for line in source:
        before.append(line)
        if line.strip():
            cells = line.split(delimiter)[1:]
            spaced = bool(cells) and all(cell[:1] == " " for cell in cells)
            return spaced, chain(before, source)
    return False, iter(before)


def _header(cells: list[str], line: int) -> list[str]:
    header = [cell.strip() for cell in cells]
    if len(header) > MAX_COLUMNS:
        raise DatasetError(too_many_columns(f"the header (line {line})", len(header)))
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DatasetError(
            f"the header (line {line}) names a column twice: {names_in(dict.fromkeys(twice))}"
        )
    return header


def _named(delimiter: str) -> str:
    return NAMES.get(delimiter, repr(delimiter))
