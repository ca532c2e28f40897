"""The use of CPU time, memory and waits by the processes of a program together, read from /proc."""

import contextlib
import os
from collections.abc import Iterator

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_SOCKET_BYTES = 256 << 10
"""The memory that counts for a local socket: its buffer holds 208 KiB by default, and belongs to no
process."""


class Usage:
    """The use of CPU time by process `pid` and all its descendants. `isolated`: they have a network
    of their own. A process that ends between two readings is missed if no process waits for it."""

    def __init__(self, pid: int, *, isolated: bool) -> None:
        self._pid = pid
        self._isolated = isolated
        self._delays: dict[str, int] = {}
        self.processes: list[int] = []
        """The descendants of `pid` at the last reading."""
        self.seconds = 0.0
        """CPU time of all processes."""

    def read(self) -> float:
        """Read /proc again. Return how many seconds all threads together have waited for a CPU
        since the last reading. A wait counts once it is over."""
        self.processes = list(_descendants(self._pid))
        everyone = [self._pid, *self.processes]
        self.seconds = max(self.seconds, sum(map(_cpu_seconds, everyone)))
        delays = dict(delay for pid in everyone for delay in _delays(pid))
        waited = sum(delay - self._delays.get(thread, 0) for thread, delay in delays.items())
        self._delays = delays
        return waited / 1e9

    def may_hold_more_than(self, most: int) -> bool:
        """Tell whether the processes of the last reading have more than `most` bytes together, if
        they share no pages."""
        return sum(map(_resident, self.processes)) > self._for_processes(most)

    def holds_more_than(self, most: int) -> bool:
        """Tell whether the processes below `pid` have more than `most` bytes together now. Shared
        pages count once, which takes long to find out."""
        # Processes are read one after the other. If one ends meanwhile, its share moves to
        # processes that are read later, and counts twice. So an excess is measured a second time.
        return all(
            sum(map(_proportional, _descendants(self._pid))) > self._for_processes(most)
            for _ in range(2)
        )

    def _for_processes(self, most: int) -> int:
        """Return the part of `most` bytes that the sockets leave to the processes."""
        return most - (_sockets(self._pid) * _SOCKET_BYTES if self._isolated else 0)


def own_delay() -> float:
    """Return how many seconds this thread has waited for a CPU since it began."""
    return _delay("/proc/thread-self/schedstat") / 1e9


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in _text(f"/proc/{pid}/task/{thread}/children").split():
                yield int(child)
                yield from _descendants(int(child))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of the children that it has waited for."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _delays(pid: int) -> Iterator[tuple[str, int]]:
    """Return the threads of a process, each with its waits for a CPU in nanoseconds."""
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
    shares = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return shares or _resident(pid)


def _sockets(pid: int) -> int:
    """Return the local sockets of a process's network, including sockets in transit to a
    process."""
    lines = _text(f"/proc/{pid}/net/protocols").splitlines()
    return sum(int(line.split()[2]) for line in lines if line.startswith("UNIX"))


def _text(path: str) -> str:
    """Return the content of a file below /proc. Return an empty string once its process has
    ended."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
