"""Read gzip files. A few bytes may unpack to gigabytes, so the unpacked bytes are counted."""

import gzip
import io
import zlib
from typing import Any, BinaryIO

from services.datasets.row_checks import DatasetError

MAGIC = b"\x1f\x8b"
CHUNK = 1 << 18


def unpacked(file: BinaryIO, filename: str, most: int) -> io.BufferedReader:
    """Return a reader of the unpacked `file`. It raises DatasetError if the file is damaged, or
    holds more than `most` bytes."""
    file.seek(0)
    return io.BufferedReader(_Unpacked(file, filename, most), CHUNK)


class _Unpacked(io.RawIOBase):
    def __init__(self, file: BinaryIO, filename: str, most: int) -> None:
        self._content = gzip.GzipFile(fileobj=file, mode="rb")
        self._named, self._most, self._read = filename, most, 0

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def seekable(self) -> bool:
        """Whether a reader may seek: here, only to the beginning."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """See RawIOBase. Only to the beginning."""
        if (offset, whence) != (0, 0):
            raise io.UnsupportedOperation("a packed file is read from its beginning")
        self._read = 0
        return self._content.seek(0)

    def tell(self) -> int:
        """See RawIOBase."""
        return self._read

    def readinto(self, buffer: Any) -> int:
        """See RawIOBase."""
        try:
            chunk = self._content.read1(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DatasetError(f"{self._named} is no whole gzip file: {error}") from None
        self._read += len(chunk)
        if self._read > self._most:
            raise DatasetError(
                f"{self._named} unpacks to more than {self._most >> 20} MiB: unpack it, and upload "
                "fewer rows"
            )
        buffer[: len(chunk)] = chunk
        return len(chunk)
