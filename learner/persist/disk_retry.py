"""Write to a data volume that may be full: pause the run, and retry until the write succeeds.

The pause has a reason that names the file and the way out. Meanwhile no lease is granted, and
afterwards the run continues by itself. Until a write is whole it must leave nothing under a final
name, so it can be retried.
"""

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol, TypeVar

from safetensors import SafetensorError

from learner.store.run_store import RunStore
from services.runtime.logs import get_logger
from services.volume import DATA_RESERVE, written_beside

log = get_logger(__name__)

T = TypeVar("T")

WAYS_OUT = {
    errno.ENOSPC: "make room on the data volume, of which "
    f"{DATA_RESERVE >> 20} MiB stay free for Redis",
    errno.EDQUOT: "raise the disk quota, or make room within it, on the data volume",
    errno.EFBIG: "raise the learner's limit on the size of a file (ulimit -f)",
    errno.EROFS: "make it writable again: the data volume",
    errno.EIO: "see the kernel's log, and repair the disk under the data volume",
}
FIRST_WAIT, LONGEST_WAIT = 0.5, 15.0
LOOK_SECONDS = 0.25


class CannotWrite(OSError):
    """The run or this process was asked to end while the disk could not be written."""


class DiskStatus(Protocol):
    """The run that a disk writes for (`RunStore`)."""

    def pause(self, reason: str) -> None:
        """Stop granting leases, for this reason."""

    def go_on(self) -> None:
        """End the pause."""

    def cancelled(self) -> bool:
        """Whether the run should end."""

    def hold(self) -> None:
        """Raise if another learner has taken over the run."""


@dataclass(frozen=True)
class OtherRank:
    """Report a disk problem of a non-zero rank. It only warns: rank 0 alone may pause the run, for
    a problem of its own disk. Otherwise rank 0 waits for this rank, and the run stands still."""

    store: RunStore
    rank: int

    def pause(self, reason: str) -> None:
        """Add the reason for the standstill to the run's events."""
        self.store.warn(f"rank {self.rank} waits for its disk: {reason}")

    def go_on(self) -> None:
        """Do nothing."""

    def cancelled(self) -> bool:
        return self.store.cancelled()

    def hold(self) -> None:
        """Do nothing: rank 0 checks before it renames."""


class Disk:
    """Retries writes of one run while the disk refuses them. Safe for several threads."""

    def __init__(self, root: Path, status: DiskStatus, stop: threading.Event) -> None:
        """`root`: the data volume; `stop`: set if this process should end."""
        self.root, self._status, self._stop = root, status, stop
        self._abandoned = threading.Event()
        self._lock = threading.Lock()
        self._troubled: dict[str, str] = {}
        """Reasons by the name of the file that cannot be written."""

    def abandon(self) -> None:
        self._abandoned.set()

    def retry(self, name: str, write: Callable[[], T], size: int = 0) -> T:
        """Return the result of `write`, which writes `name` (relative to the volume, about `size`
        bytes), and retry until the disk accepts it. Raises CannotWrite if the run or this process
        should end, and Fenced if a successor has deleted an unfinished file."""
        wait = FIRST_WAIT
        while True:
            try:
                if shutil.disk_usage(self.root).free < size + DATA_RESERVE:
                    raise OSError(errno.ENOSPC, "")
                result = write()
            except (OSError, SafetensorError) as error:
                number = disk_error(error)
                if number is None:
                    if isinstance(error, FileNotFoundError):
                        self._status.hold()
                    raise
                sentence = self._sentence(name, number)
            else:
                self._well(name)
                return result
            self._trouble(name, sentence)
            self._wait(wait, sentence)
            wait = min(2 * wait, LONGEST_WAIT)

    @property
    def _told_to_end(self) -> bool:
        return self._stop.is_set() or self._status.cancelled()

    def _sentence(self, name: str, number: int) -> str:
        return (
            f"cannot write {name}: {os.strerror(number)}; {WAYS_OUT[number]} ({self.root}), and "
            "the run goes on by itself"
        )

    def _trouble(self, name: str, sentence: str) -> None:
        with self._lock:
            news = sentence not in self._troubled.values()
            self._troubled[name] = sentence
            if news:
                log.error("the run pauses", reason=sentence)
                self._status.pause(sentence)

    def _well(self, name: str) -> None:
        with self._lock:
            if self._troubled.pop(name, None) is None:
                return
            if self._troubled:
                self._status.pause(next(iter(self._troubled.values())))
            else:
                log.info("the disk takes writes again")
                self._status.go_on()

    def _wait(self, seconds: float, sentence: str) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._abandoned.wait(LOOK_SECONDS) or self._told_to_end:
                raise CannotWrite(sentence)


def disk_error(error: OSError | SafetensorError) -> int | None:
    """Return the error number if the disk is the cause and waiting may help, else None."""
    number = error.errno if isinstance(error, OSError) else None
    # safetensors gives the error number only as text.
    if number is None and (match := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(match[1])
    return number if number in WAYS_OUT else None


def append(file: FileIO, text: str) -> None:
    """Append `text` to an open file, all or nothing. Raises OSError."""
    before = os.fstat(file.fileno()).st_size
    remaining = memoryview(text.encode())
    try:
        while remaining:
            remaining = remaining[file.write(remaining) :]
    except OSError:
        file.truncate(before)
        raise


def replaced(path: Path, text: str) -> FileIO:
    """Replace `path` by a new file with `text`, all or nothing. Returns it open for appending.
    Raises OSError."""
    with written_beside(path) as beside:
        beside.write_text(text)
        return FileIO(beside, "a")
