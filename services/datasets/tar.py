"""Read a tar of JSON files, such as the tar of MATH. Each .json file is a row, and so is each line
of a .jsonl file.

The tar is read as a stream: nothing is unpacked to the disk.
"""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO, Any, BinaryIO

from services.contracts.strict_json import NotJSON, decode
from services.datasets.row_checks import MAX_ROW_BYTES, DatasetError, too_large

PATH = "path"
"""The column of the member's path, unless the row has one of this name."""
PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
MAX_PAX = 2048
"""Bytes of a PAX header, and of all global ones together. Python reads a PAX header in quadratic
time, a second for a MiB of such headers, and applies the global ones to each member."""
MAX_LONG_NAME = 8192
"""A path has at most 4,096 bytes."""

MAX_MEMBER = 16 << 30
"""Bytes of a file in the tar. Python reads as much to find the next file, also behind the end."""


def _bounded_members() -> type[tarfile.TarInfo]:
    """Return the class for the members of one tar. Its headers are bounded."""

    class Member(tarfile.TarInfo):
        global_bytes = 0

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Member":
            """See TarInfo.frombuf. Raises DatasetError."""
            member = super().frombuf(buf, encoding, errors)
            if member.type == tarfile.XGLTYPE:
                Member.global_bytes += member.size
            size = max(member.size, Member.global_bytes)
            limit = MAX_LONG_NAME if member.type in LONG_NAMES else MAX_PAX
            if member.type in (*PAX, *LONG_NAMES) and size > limit:
                raise DatasetError(
                    f"the headers in the tar have {size:,} bytes, and {limit:,} is the most: pack "
                    "the files without extended attributes (tar --format=gnu)"
                )
            return member

    return Member


def tar_rows(file: BinaryIO, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield rows with their place (`row 3`, from 1). Adds to `notes` which files were left out.
    Raises DatasetError."""
    number, left_out, example = 0, 0, ""
    try:
        # Not `r|*`: what else could be packed inside is not counted.
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_bounded_members()) as source:
            for member in source:
                rows = _rows(source, member)
                if rows is None:
                    left_out, example = left_out + 1, example or member.name
                for row in rows or ():
                    number += 1
                    yield f"row {number}", row
                # Else it remembers all members.
                source.members = []  # type: ignore[attr-defined]
                # Not the member's size: a sparse file is smaller in the tar.
                if source.offset - member.offset_data > MAX_MEMBER:
                    raise DatasetError(
                        f"{member.name[:200]} in the tar is larger than {MAX_MEMBER >> 30} GiB: "
                        "leave it out"
                    )
    except DatasetError:
        raise
    except (tarfile.TarError, EOFError, IndexError, OSError, ValueError) as error:
        raise DatasetError(f"not a whole tar: {error}") from None
    if left_out:
        named = example.encode(errors="replace").decode()[:200]
        notes.append(
            f"{left_out:,} files in the tar are neither .json nor .jsonl and were left out, like "
            f"{named}"
        )


def _rows(source: tarfile.TarFile, member: tarfile.TarInfo) -> Iterable[dict[str, Any]] | None:
    """Return the rows of one member of the tar: none for links and folders, None for files of other
    types."""
    name = PurePosixPath(member.name)
    # macOS adds a file of its own, `._x.json`, for each file.
    if not member.isreg() or name.name.startswith("."):
        return ()
    return _read(source, member, name.suffix) if name.suffix in (".json", ".jsonl") else None


def _read(
    source: tarfile.TarFile, member: tarfile.TarInfo, suffix: str
) -> Iterator[dict[str, Any]]:
    if suffix == ".json":
        if member.size > MAX_ROW_BYTES:
            raise DatasetError(too_large(member.name))
        yield _row(member.name, _opened(source, member).read(MAX_ROW_BYTES + 1), member.name)
    else:
        lines = _opened(source, member)
        for number, line in enumerate(iter(lambda: lines.readline(MAX_ROW_BYTES + 1), b""), 1):
            place = f"{member.name}, line {number},"
            if len(line) > MAX_ROW_BYTES:
                raise DatasetError(too_large(place))
            if line.strip():
                yield _row(place, line, member.name)


def _opened(source: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = source.extractfile(member)
    assert content is not None
    return content


def _row(place: str, text: bytes, path: str) -> dict[str, Any]:
    try:
        value = decode(text)
    except NotJSON as error:
        raise DatasetError(f"{place} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DatasetError(f"{place} is not an object: each file or line holds one row")
    # A name may be of any bytes.
    return {PATH: path.encode(errors="replace").decode(), **value}
