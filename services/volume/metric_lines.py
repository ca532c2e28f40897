"""The new lines of a file that grows, and that a learner may replace by a shorter one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

END = 4096
"""Bytes before the end of the lines so far by which changed lines are recognised: a learner that
goes back to an earlier step writes other times and values."""
PIECE = 1 << 22
"""Bytes in memory at once: the metrics of a long run take hundreds of MB."""


@dataclass
class MetricLines:
    """The lines that were read: the first `end` bytes of the file, which end with `last`."""

    end: int = 0
    last: bytes = b""

    def begins(self, file: BinaryIO) -> bool:
        """Whether these lines are still the first lines of `file`."""
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last

    def read(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the lines after them, and take them in, piece by piece. A line without an end is
        being written."""
        file.seek(self.end)
        begun = bytearray()
        while piece := file.read(PIECE):
            begun += piece
            end = begun.rfind(b"\n", len(begun) - len(piece)) + 1
            text = bytes(begun[:end])
            del begun[:end]
            self.end += end
            self.last = (self.last + text)[-END:]
            yield from text.splitlines()
