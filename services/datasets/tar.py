"""A tar of JSON files, as MATH comes: one row of each .json file, and of each line of .jsonl files.

Read as a stream by a limited child, as Parquet is: a member may say that it is terabytes long.
Nothing is unpacked to the disk.
"""

import sys
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, BinaryIO

import msgspec

from services.contracts.strict_json import NotJSON, decode
from services.datasets.parquet import limit_this_process, refuse, rows_of_child
from services.datasets.row_checks import MAX_ROW_BYTES, DatasetError, too_large

PATH = "path"
"""The column of the member's path, unless the row has one of this name."""


def tar_rows(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Rows with their place (`row 3`, from 1). Raises DatasetError."""
    yield from rows_of_child(
        file, __name__, "this tar", "unpack it, and upload what is inside as JSON lines"
    )


# --- the child ------------------------------------------------------------------------------------


def main() -> int:
    """Write standard input, a tar, as lines of JSON. Returns the exit code."""
    limit_this_process()
    try:
        # Not `r|*`: what else could be packed inside is not counted.
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as source:
            for member in source:
                for row in _rows(source, member):
                    sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
                # Else it remembers all members.
                source.members = []  # type: ignore[attr-defined]
        sys.stdout.buffer.flush()
    except DatasetError as error:
        return refuse(str(error))
    except MemoryError:
        return 2
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        return refuse(f"not a whole tar: {error}")
    return 0


def _rows(source: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[dict[str, Any]]:
    """The rows of one member; none of links, folders, and files of other kinds."""
    name = PurePosixPath(member.name)
    # macOS puts a file of its own, `._x.json`, beside each.
    if not member.isreg() or name.name.startswith("."):
        return
    if name.suffix == ".json":
        if member.size > MAX_ROW_BYTES:
            raise DatasetError(too_large(member.name))
        yield _row(member.name, _opened(source, member).read(MAX_ROW_BYTES + 1), member.name)
    elif name.suffix == ".jsonl":
        lines = _opened(source, member)
        for number, line in enumerate(iter(lambda: lines.readline(MAX_ROW_BYTES + 1), b""), 1):
            place = f"{member.name}, line {number},"
            if len(line) > MAX_ROW_BYTES:
                raise DatasetError(too_large(place))
            if line.strip():
                yield _row(place, line, member.name)


def _opened(source: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    found = source.extractfile(member)
    assert found is not None
    return found


def _row(place: str, text: bytes, path: str) -> dict[str, Any]:
    try:
        value = decode(text)
    except NotJSON as error:
        raise DatasetError(f"{place} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{place} is not an object: each file or line holds one row")
    # A name may be of any bytes.
    return {PATH: path.encode(errors="replace").decode(), **value}
