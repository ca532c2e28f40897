"""A gzip file, read as what it holds. A few bytes may hold gigabytes: what comes is counted."""

import gzip
import zlib
from typing import Any, BinaryIO

from services.datasets.parquet import EXPANSION, ROOM_BYTES
from services.datasets.row_checks import DatasetError

MAGIC = b"\x1f\x8b"


class Unpacked(gzip.GzipFile):
    """The content of `file`, in lines. Raises DatasetError where it is damaged, or takes more than
    EXPANSION times the file."""

    def __init__(self, file: BinaryIO, filename: str) -> None:
        size = file.seek(0, 2)
        file.seek(0)
        super().__init__(fileobj=file, mode="rb")
        self._named = filename
        self._room = max(ROOM_BYTES, EXPANSION * size)

    def read(self, size: int | None = -1) -> bytes:
        """See GzipFile.read."""
        return self._counted(super().read, size)

    def readline(self, size: int | None = -1) -> bytes:
        """See GzipFile.readline."""
        return self._counted(super().readline, size)

    def _counted(self, read: Any, size: int | None) -> bytes:
        try:
            found: bytes = read(size)
            if self.tell() > self._room:
                raise DatasetError(
                    f"{self._named} unpacks to more than {self._room >> 20} MiB, over {EXPANSION} "
                    "times the file: unpack it, and upload fewer rows"
                )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DatasetError(f"{self._named} is no whole gzip file: {error}") from None
        return found
