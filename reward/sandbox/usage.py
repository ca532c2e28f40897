"""What the processes of a program use together, read from /proc: CPU time, memory, waiting."""

import contextlib
import os
from collections.abc import Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_SOCKET_BYTES = 256 << 10
"""What a local socket counts as: its buffer holds 208 KiB by default, and belongs to no process."""


class Usage:
    """The use of CPU time by process `pid` and all below it. `isolated`: they have a network of
    their own.

    Processes that nobody waits for, and that end between two readings, are not seen.
    """

    def __init__(self, pid: int, *, isolated: bool) -> None:
        self._pid = pid
        self._isolated = isolated
        self._delays: dict[str, int] = {}
        self.processes: list[int] = []
        """Those below `pid`, at the last reading."""
        self.seconds = 0.0
        """CPU time."""

    def read(self) -> float:
        """Read again. Returns how long the threads have waited for a CPU since the last reading,
        all together, in seconds. A wait is seen when it is over."""
        self.processes = list(_descendants(self._pid))
        everyone = [self._pid, *self.processes]
        self.seconds = max(self.seconds, sum(map(_cpu_seconds, everyone)))
        delays = dict(delay for pid in everyone for delay in _delays(pid))
        waited = sum(delay - self._delays.get(thread, 0) for thread, delay in delays.items())
        self._delays = delays
        return waited / 1e9

    def may_hold_more_than(self, most: int) -> bool:
        """Whether the processes of the last reading have more than `most` bytes together, if they
        share none."""
        return sum(map(_resident, self.processes)) > self._for_processes(most)

    def holds_more_than(self, most: int) -> bool:
        """Whether the processes below `pid` have more than `most` bytes together now. Pages that
        they share count once; finding out which takes long."""
        # They are read one after the other: the share of one that ends meanwhile falls to those
        # that are read after it, and counts twice. So what is over is looked at again.
        return all(
            sum(map(_proportional, _descendants(self._pid))) > self._for_processes(most)
            for _ in range(2)
        )

    def _for_processes(self, most: int) -> int:
        """What the sockets leave of `most` bytes."""
        return most - (_sockets(self._pid) * _SOCKET_BYTES if self._isolated else 0)


def own_delay() -> float:
    """How long this thread has waited for a CPU since it began, in seconds."""
    return _delay("/proc/thread-self/schedstat") / 1e9


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in _text(f"/proc/{pid}/task/{thread}/children").split():
                yield int(child)
                yield from _descendants(int(child))


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process, and of those that it has waited for."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _delays(pid: int) -> Iterator[tuple[str, int]]:
    """The threads of a process, each with how long it has waited for a CPU, in nanoseconds."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            yield thread, _delay(f"/proc/{pid}/task/{thread}/schedstat")


def _delay(path: str) -> int:
    fields = _text(path).split()
    return int(fields[1]) if fields else 0


def _resident(pid: int) -> int:
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _proportional(pid: int) -> int:
    lines = _text(f"/proc/{pid}/smaps_rollup").splitlines()
    found = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return found or _resident(pid)


def _sockets(pid: int) -> int:
    """The local sockets of a process's network, also those that are on their way to a process."""
    lines = _text(f"/proc/{pid}/net/protocols").splitlines()
    return sum(int(line.split()[2]) for line in lines if line.startswith("UNIX"))


def _text(path: str) -> str:
    """The content of a file below /proc; empty once its process has ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
