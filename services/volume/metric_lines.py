"""The new lines of a file that grows, and that a learner may replace by a shorter one."""

from dataclasses import dataclass
from typing import BinaryIO

END = 4096
"""Bytes before the end of the lines so far by which changed lines are recognised: a learner that
goes back to an earlier step writes other times and values."""


@dataclass
class MetricLines:
    """The lines that were read: the first `end` bytes of the file, which end with `last`."""

    end: int = 0
    last: bytes = b""

    def begins(self, file: BinaryIO) -> bool:
        """Whether these lines are still the first lines of `file`."""
        file.seek(self.end - len(self.last))
        return file.read(len(self.last)) == self.last

    def read(self, file: BinaryIO) -> list[bytes]:
        """Return the lines after them. A line without an end is being written."""
        file.seek(self.end)
        text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self.end += len(text)
        self.last = (self.last + text)[-END:]
        return text.splitlines()
