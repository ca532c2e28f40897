"""Convert uploads in a child process, which the kernel limits and the caller may kill.

Parquet, gzip and tar files may hold much more than their size, and any file may take more time than
its size suggests. The child writes the rows; only the caller publishes them. A small text file is
converted in the caller's process, because a child takes longer to start.
"""

import asyncio
import contextlib
import errno
import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import TypeAdapter

from headrace.death_signal import die_with
from services.contracts.file_preview import FilePreview
from services.datasets.columns import ColumnMapping
from services.datasets.conversion import SourceFile
from services.datasets.file_formats import Format, UnsupportedFormat
from services.datasets.file_preview import preview_file
from services.datasets.known_files import KnownFile, known_file
from services.datasets.row_checks import DatasetError
from services.datasets.segments import unpublished_file
from services.datasets.unpacking import MAGIC
from services.datasets.upload import (
    Converted,
    Imported,
    convert,
    import_files,
    most_row_bytes,
    published,
    size_of,
)

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 60
"""For any files, and a second more for each BYTES_A_SECOND of them."""
BYTES_A_SECOND = 1 << 20
PREVIEW_SECONDS = 20
SMALL_BYTES = 1 << 16
"""Text up to this size is converted without a child."""


async def import_in_child(
    root: Path,
    files: Sequence[SourceFile],
    name: str,
    format: Format | None,
    mapping: ColumnMapping | KnownFile,
    quota: int,
    *,
    skips_bad_rows: bool = False,
) -> Imported:
    """Convert `files` into the first segment of the dataset `name` under `root`, in a child process
    unless they are small texts.

    `quota`: the most bytes of the rows. Raises DatasetError, and OSError if the disk is full. An
    import that fails or is cancelled leaves no file, and its child ends at once.
    """
    size = size_of(files)
    if size <= SMALL_BYTES and all(_is_text(source, format) for source in files):
        work = partial(import_files, skips_bad_rows=skips_bad_rows)
        return await anyio.to_thread.run_sync(work, root, files, name, format, mapping)
    path = await anyio.to_thread.run_sync(unpublished_file, root)
    try:
        seconds = CPU_SECONDS + size // BYTES_A_SECOND
        job = {
            "path": str(path),
            "files": [[source.file.fileno(), source.name] for source in files],
            "format": format,
            "mapping": mapping.name if isinstance(mapping, KnownFile) else asdict(mapping),
            "most": most_row_bytes(size, quota),
            "skips_bad_rows": skips_bad_rows,
            "seconds": seconds,
        }
        answered = await _answered(job, [source.file.fileno() for source in files])
        converted = TypeAdapter(Converted).validate_python(answered)
        return await anyio.to_thread.run_sync(published, root, name, path, converted)
    finally:
        path.unlink(missing_ok=True)


async def preview_in_child(
    source: SourceFile,
    format: Format | None,
    mapping: ColumnMapping | KnownFile,
    rows: int,
    is_head: bool,
) -> FilePreview:
    """Preview the first `rows` of a file as `preview_file` does, in a child process unless the file
    is a small text. Raises DatasetError if that takes too much memory or time."""
    if size_of([source]) <= SMALL_BYTES and _is_text(source, format):
        return await anyio.to_thread.run_sync(preview_file, source, format, mapping, rows, is_head)
    job = {
        "files": [[source.file.fileno(), source.name]],
        "format": format,
        "mapping": mapping.name if isinstance(mapping, KnownFile) else asdict(mapping),
        "seconds": PREVIEW_SECONDS,
        "rows": rows,
        "is_head": is_head,
    }
    return FilePreview.model_validate(await _answered(job, [source.file.fileno()]))


def _is_text(source: SourceFile, format: Format | None) -> bool:
    """Whether a file is neither packed nor binary, so that its rows take about as much memory as
    its bytes."""
    source.file.seek(0)
    head = source.file.read(4)
    packed = head.startswith(MAGIC) or head == b"PAR1" or format in ("parquet", "tar")
    return not packed and not source.name.lower().endswith((".parquet", ".pq", ".tar", ".tgz"))


async def _answered(job: dict[str, Any], files: list[int]) -> Any:
    """Do the `job` in a child process. Raises DatasetError and OSError."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"import sys; from {__name__} import main; sys.exit(main())"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=files,
        # The system's allocator takes no memory before it is needed.
        env=environment | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
        preexec_fn=die_with(os.getpid()),
    )
    try:
        answer, _ = await child.communicate(json.dumps(job).encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())
    if not answer:
        raise DatasetError(
            f"{job['files'][0][1]} cannot be converted with {MEMORY_BYTES >> 30} GiB of memory in "
            f"{job['seconds']} s of CPU time: upload fewer rows, Parquet with smaller row groups, "
            "or JSON lines, and append the others in parts"
        )
    answered = json.loads(answer)
    match answered:
        case {"refused": reason, "unsupported": unsupported}:
            raise (UnsupportedFormat if unsupported else DatasetError)(reason)
        case {"errno": number}:
            raise OSError(number, os.strerror(number))
    return answered


# --- the child ------------------------------------------------------------------------------------


def main() -> int:
    """Do the job that standard input describes. Write the result as JSON."""
    job = json.loads(sys.stdin.buffer.read())
    for limit, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, job["seconds"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    files = [SourceFile(os.fdopen(number, "rb"), name) for number, name in job["files"]]
    try:
        result = _done(job, files)
    except DatasetError as error:
        result = {"refused": str(error), "unsupported": isinstance(error, UnsupportedFormat)}
    except RecursionError:
        too_deep = "the file nests too deep to be read: unpack it, or upload JSON lines"
        result = {"refused": too_deep, "unsupported": False}
    except MemoryError:
        return 2
    except OSError as error:
        result = {"errno": error.errno or errno.EIO}
    sys.stdout.write(json.dumps(result))
    return 0


def _done(job: dict[str, Any], files: list[SourceFile]) -> dict[str, Any]:
    asked, format = job["mapping"], job["format"]
    mapping = known_file(asked) if isinstance(asked, str) else ColumnMapping(**asked)
    if "path" not in job:
        preview = preview_file(files[0], format, mapping, job["rows"], job["is_head"])
        return preview.model_dump(mode="json")
    path, most, skips = Path(job["path"]), job["most"], job["skips_bad_rows"]
    converted = convert(files, path, format, mapping, most, skips_bad_rows=skips)
    result: dict[str, Any] = TypeAdapter(Converted).dump_python(converted, mode="json")
    return result
