"""A file during its download: its bytes so far, and which parts are right.

It is in the same folder as the final file. So a later process of the host continues the download of
a killed one, and other hosts get its parts while the rest still comes (`rollout.file_server`). Only
the process that holds the file's lock writes it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from services.contracts.weights import WeightFile, part_bytes
from services.volume.files import CHUNK, opened_by_umask


def partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def parts_path(path: Path) -> Path:
    """Return the path of the marks of an unfinished file: a byte for each part, 1 if the part is
    right."""
    return path.with_name(f".{path.name}.parts")


class Partial:
    """An unfinished download of `file` to `path`. Open it with `opened`."""

    def __init__(self, path: Path, file: WeightFile) -> None:
        self._path, self._file = path, file
        self.length = part_bytes(file.bytes)
        self._data = _open(partial_path(path))
        try:
            self._parts = _open(parts_path(path))
        except OSError:
            os.close(self._data)
            raise

    @classmethod
    @contextmanager
    def opened(cls, path: Path, file: WeightFile) -> Iterator["Partial"]:
        """Continue or begin a download."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = cls(path, file)
        try:
            yield partial
        finally:
            os.close(partial._data)
            os.close(partial._parts)

    def missing(self) -> list[int]:
        """Return the missing parts. Reads the marked parts: after a power cut they may be wrong."""
        count, size = len(self._file.parts), self._file.bytes
        marks = os.pread(self._parts, count, 0)
        os.truncate(self._parts, 0)
        os.truncate(self._parts, count)
        os.truncate(self._data, size)
        for part in range(count):
            if marks[part : part + 1] == b"\1" and self._is_right(part):
                self.mark(part)
        return [part for part in range(count) if os.pread(self._parts, 1, part) != b"\1"]

    def span(self, part: int) -> tuple[int, int]:
        """Return (first byte, last byte + 1) of a part."""
        start = part * self.length
        return start, min(start + self.length, self._file.bytes)

    def write(self, data: memoryview, at: int) -> None:
        while data:
            count = os.pwrite(self._data, data, at)
            data, at = data[count:], at + count

    def mark(self, part: int) -> None:
        """Mark a part as right. Other processes may read it from now on."""
        os.pwrite(self._parts, b"\1", part)

    def finish(self) -> None:
        """Give the file its final name. It is not fsynced: every reader compares its checksum after
        a power cut."""
        opened_by_umask(partial_path(self._path))
        partial_path(self._path).rename(self._path)
        parts_path(self._path).unlink(missing_ok=True)

    def _is_right(self, part: int) -> bool:
        start, stop = self.span(part)
        digest = xxhash.xxh3_64()
        for at in range(start, stop, CHUNK):
            digest.update(os.pread(self._data, min(CHUNK, stop - at), at))
        return digest.hexdigest() == self._file.parts[part]


def discard(path: Path) -> None:
    """Delete an unfinished file."""
    for leftover in (partial_path(path), parts_path(path)):
        with suppress(FileNotFoundError):
            leftover.unlink()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
