"""Read the beginning of a file, and make rows of it, before anything is stored."""

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from services.contracts.file_preview import FilePreview, MappedRow
from services.contracts.preview import shortened
from services.datasets.columns import ColumnMapping
from services.datasets.conversion import Conversion, SourceFile
from services.datasets.file_formats import Format, read_rows
from services.datasets.json_array import is_array
from services.datasets.known_files import KnownFile
from services.datasets.row_checks import DatasetError
from services.datasets.unpacking import MAGIC

CHARACTERS = 2000
"""Characters that are shown of a value."""
HEAD_BYTES = 8 << 20
"""Bytes that are read of a file's beginning, if the rest has not been sent."""
WHOLE_FILE = (
    "a packed file and Parquet can only be read whole: upload it first (POST /v1/uploads), and "
    "preview the upload"
)


def preview_file(
    source: SourceFile,
    format: Format | None,
    mapping: ColumnMapping | KnownFile,
    rows: int,
    is_head: bool,
) -> FilePreview:
    """Return the first `rows` of a file. `is_head`: the file goes on behind the bytes that are
    here. Never raises DatasetError: the preview has its message."""
    if is_head:
        source = SourceFile(_head(source.file), source.name)
    conversion = Conversion([source], format, mapping, HEAD_BYTES << 4)
    preview = FilePreview(
        format=None, columns=[], source=[], prompt=[], answer=[], rows=[], notes=[], problem=None
    )
    try:
        if is_head and source.file.read(4).startswith((MAGIC, b"PAR1")):
            raise DatasetError(WHOLE_FILE)
        file, preview.format = conversion.opened(source)
        for _, row in _first(read_rows(file, preview.format, preview.notes), rows, is_head):
            preview.source.append({name: _shown(value) for name, value in row.items()})
        for made in islice(conversion.rows(), len(preview.source)):
            preview.rows.append(
                MappedRow(
                    prompt=_shown_prompt(made.prompt),
                    answer=_shown(made.answer),
                    columns={name: _shown(value) for name, value in made.columns.items()},
                )
            )
    except DatasetError as error:
        preview.problem = str(error)
    used = conversion.mapping
    if isinstance(used, ColumnMapping):
        preview.prompt = list(used.prompts)
        preview.answer = list(used.answers)
    preview.columns = list(dict.fromkeys(name for row in preview.source for name in row))
    return preview


def _first(
    pairs: Iterator[tuple[str, dict[str, Any]]], rows: int, is_head: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first rows. The last row of a head may be cut off: an error behind whole rows is
    then no error of the file."""
    count = 0
    try:
        for pair in islice(pairs, rows):
            count += 1
            yield pair
    except DatasetError:
        if not (is_head and count):
            raise


def _head(file: BinaryIO) -> BinaryIO:
    """Return the beginning of a file, of a text up to its last line end. An array of JSON may have
    no line ends, and a tar is no text."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    end = head.rfind(b"\n") + 1
    is_lines = b"\0" not in head and not is_array(io.BytesIO(head))
    is_cut = is_lines and 0 < end < len(head)
    return io.BytesIO(head[:end] if is_cut else head)


def _shown_prompt(prompt: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(prompt, str):
        return shortened(prompt, CHARACTERS)
    return [{name: _shown(value) for name, value in turn.items()} for turn in prompt]


def _shown(value: Any) -> Any:
    """Return a value, or a text without its middle if the value is long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= CHARACTERS else shortened(text, CHARACTERS)
