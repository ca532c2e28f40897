"""Parquet, read by a process of its own: 821 bytes of it may stand for gigabytes.

The child decodes and writes each row as a line of JSON; its memory and its time are limited by the
kernel. The caller counts what comes, so that neither its memory nor the disk fills up.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from services.contracts.strict_json import NotJSON, decode
from services.datasets.row_checks import (
    MAX_COLUMNS,
    MAX_ROW_BYTES,
    DatasetError,
    names_in,
    too_large,
)
from services.runtime.process import die_with

MEMORY_BYTES = 2 << 30
CPU_SECONDS = 1800
EXPANSION = 100
"""How many times its size a file may take as rows. Text compresses to a tenth."""
ROOM_BYTES = 64 << 20
"""What any file may take, however small it is."""
BATCH = 64
"""Rows decoded at once."""


def parquet_rows(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Rows with their place (`row 3`, from 1). Raises DatasetError."""
    yield from rows_of_child(
        file, __name__, "this Parquet file", "write it with smaller row groups, or as JSON lines"
    )


def rows_of_child(
    file: BinaryIO, module: str, named: str, way_out: str
) -> Iterator[tuple[str, Any]]:
    """Rows of `file` that the `main` of `module` writes in a process of its own, as lines of JSON.
    Raises DatasetError, which says what was `named`, and the `way_out`."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        file.seek(0)
        shutil.copyfileobj(file, source)
        size = source.tell()
        source.seek(0)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        child = subprocess.Popen(
            [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=errors,
            # The system's allocator takes no memory before it is needed.
            env=environment | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
            preexec_fn=die_with(os.getpid()),
        )
        assert child.stdout is not None
        try:
            yield from _rows(child.stdout, max(ROOM_BYTES, EXPANSION * size))
            if (code := child.wait()) != 0:
                errors.seek(0)
                said = errors.read(2000).decode(errors="replace")
                if code == 1 and said.startswith(REFUSED):
                    raise DatasetError(said.removeprefix(REFUSED))
                raise DatasetError(
                    f"{named} cannot be decoded with {MEMORY_BYTES >> 30} GiB of memory in "
                    f"{CPU_SECONDS} s: {way_out}"
                )
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _rows(lines: Any, room: int) -> Iterator[tuple[str, Any]]:
    total, number = 0, 0
    while line := lines.readline(MAX_ROW_BYTES + 1):
        number += 1
        total += len(line)
        if len(line) > MAX_ROW_BYTES:
            raise DatasetError(too_large(f"row {number}"))
        if not line.endswith(b"\n"):
            return
        if total > room:
            raise DatasetError(
                f"its rows take more than {room >> 20} MiB, over {EXPANSION} times the file: it "
                "repeats few values very often. Upload fewer rows, or append them in parts"
            )
        try:
            yield f"row {number}", decode(line)
        except NotJSON as error:
            raise DatasetError(f"row {number}: {error}") from None


# --- the child ------------------------------------------------------------------------------------

REFUSED = "refused: "


def main() -> int:
    """Write standard input, a Parquet file, as lines of JSON. Returns the exit code."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    limit_this_process()
    number = 0
    try:
        with pq.ParquetFile(sys.stdin.buffer) as source:
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
                    number += 1
                    for name in binary:
                        row[name] = _text(row[name])
                    sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
        sys.stdout.buffer.flush()
    except DatasetError as error:
        return refuse(str(error))
    except UnicodeDecodeError as error:
        return refuse(f"not valid UTF-8 after row {number}: {error}")
    except RecursionError:
        return refuse(f"row {number} is nested too deeply")
    except pa.ArrowMemoryError:
        return 2
    except (pa.ArrowException, OSError) as error:
        return refuse(f"not a whole Parquet file (after row {number}): {error}")
    except (ValueError, OverflowError, TypeError) as error:
        # A moment that Python has no date for, or parts of a second that it does not count.
        return refuse(
            f"a value after row {number} cannot be taken as JSON: {error}. Write it as text"
        )
    return 0


def _is_binary(type: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _text(value: bytes | None) -> Any:
    """A value of a binary column: many writers do not mark text as such. Other bytes become an
    object, which can be neither a prompt nor an answer by mistake."""
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": value}


def limit_this_process() -> None:
    """Bound the memory and the time of the child."""
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def refuse(why: str) -> int:
    """Say why there are no more rows. Returns the child's exit code."""
    sys.stdout.buffer.flush()
    sys.stderr.write(REFUSED + why)
    return 1
