"""Rows of a Parquet file. A file of 821 bytes may hold gigabytes, so a process with
limits reads it (`services.datasets.import_process`).
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from services.contracts.strict_json import NotJSON, decode
from services.datasets.row_checks import (
    MAX_COLUMNS,
    MAX_ROW_BYTES,
    DatasetError,
    names_in,
    too_large,
)

BATCH = 64
"""Rows decoded at once."""


def parquet_rows(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield rows with their place (`row 3`, from 1), with values as JSON has them. Raises
    DatasetError and MemoryError."""
    number = 0
    try:
        for row in _rows(file):
            number += 1
            text = msgspec.json.encode(row)
            if len(text) > MAX_ROW_BYTES:
                raise DatasetError(too_large(f"row {number}"))
            yield f"row {number}", decode(text)
    except NotJSON as error:
        raise DatasetError(f"row {number}: {error}") from None
    except DatasetError:
        raise
    except UnicodeDecodeError as error:
        raise DatasetError(f"not valid UTF-8 after row {number}: {error}") from None
    except RecursionError:
        raise DatasetError(f"row {number} is nested too deeply") from None
    except pa.ArrowMemoryError:
        raise MemoryError from None
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"not a whole Parquet file (after row {number}): {error}") from None
    except (ValueError, OverflowError, TypeError) as error:
        # A moment that Python has no date for, or parts of a second that it does not count.
        raise DatasetError(
            f"a value after row {number} cannot be taken as JSON: {error}. Write it as text"
        ) from None


def _rows(file: BinaryIO) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(file) as source:
        if source.metadata.num_columns > MAX_COLUMNS:
            raise DatasetError(
                f"it has {source.metadata.num_columns} columns; {MAX_COLUMNS} is the most: "
                "leave out those that no verifier needs"
            )
        names = source.schema_arrow.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DatasetError(
                f"it has a column twice: {names_in(dict.fromkeys(twice))}: rename one"
            )
        binary = [field.name for field in source.schema_arrow if _is_binary(field.type)]
        for batch in source.iter_batches(batch_size=BATCH, use_threads=False):
            for row in batch.to_pylist():
                yield row | {name: _text(row[name]) for name in binary}


def _is_binary(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _text(value: bytes | None) -> Any:
    """Decode a value of a binary column as text, because many writers do not mark text as such.
    Other bytes become an object, which cannot become a prompt or an answer by mistake."""
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": value}
