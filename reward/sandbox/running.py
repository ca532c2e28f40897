"""Programs that run in the sandbox: watched while they run, and how they ended."""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from reward.sandbox import cgroup
from reward.sandbox.limits import PAUSE, RESUME, WITHOUT_CGROUP, Limits
from reward.sandbox.usage import Usage, own_delay

_TICK = 0.02
"""Seconds between two looks at what a program uses."""
_WINDOW = 2.0
"""Seconds. A program waits for a CPU at most that long at a stretch, or the rest counts as its own
time: several threads that wait at once must not add up."""


class SandboxError(Exception):
    """The sandbox cannot be used: the message says why."""


class Ending(NamedTuple):
    """How a program ended."""

    limit: str
    """`time_limit`, `memory_limit`, `output_limit`, `process_limit`, or empty. `starved`: it was
    still within its time, but got so little CPU time that nobody waits longer."""
    code: int | None
    """Exit code, or minus the signal; None where we ended it."""
    output: bytes
    errors: bytes
    outcome: bytes
    """What a test has said; see `reward.sandbox.program`."""
    waited: float = 0.0
    """Seconds of the run in which a process waited for a CPU."""


class Running:
    """One program, by the first process of its namespaces."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        isolated: bool,
        files: Sequence[int],
        group: cgroup.ProgramGroup | None,
    ) -> None:
        self.pidfd = pidfd
        self._isolated = isolated
        self._usage = Usage(pid, isolated=isolated)
        self._group = group
        # Namespaces end with their first process; without them, that one has to clean up.
        self._signal = signal.SIGKILL if isolated else signal.SIGTERM
        self._files = files

    def look(self) -> float:
        """See what its processes use. Returns how long they have waited for a CPU since the last
        look, in seconds."""
        return self._usage.read()

    def exceeded(self, limits: Limits) -> str:
        """Which limit its processes exceed together, as of the last look, or an empty string."""
        seconds = self._usage.seconds if self._group is None else self._group.seconds
        if seconds >= limits.seconds:
            return "time_limit"
        if self._group is not None:
            return "memory_limit" if self._group.out_of_memory else ""
        if len(self._usage.processes) > WITHOUT_CGROUP.processes:
            return "process_limit"
        if not self._usage.may_hold_more_than(limits.memory_bytes):
            return ""
        self._have_first(PAUSE)
        if self._usage.holds_more_than(limits.memory_bytes):
            return "memory_limit"
        self._have_first(RESUME)
        return ""

    def _have_first(self, number: signal.Signals) -> None:
        """Have the first process stop or continue all others: they take no memory meanwhile."""
        if self._isolated:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def end(self) -> None:
        """Have all its processes killed."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, self._signal)

    def wait(self, seconds: float) -> bool:
        """Whether all its processes have ended, or do so within that many seconds."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def ending(self, stopped: str, limits: Limits) -> Ending:
        """How it ended, after it has. Raises SandboxError where it was not its own doing."""
        report, *files = (_content(file, limits.file_bytes) for file in self._files)
        output, errors, outcome = files
        if not report:
            return Ending(stopped, None, output, errors, outcome)
        # A program that could not be started says so itself, before its end is reported.
        told = json.loads(report.splitlines()[0])
        if "problem" in told:
            raise SandboxError(told["problem"])
        code = os.waitstatus_to_exitcode(told["status"])
        limit = stopped
        if self._group is not None and self._group.out_of_memory:
            limit = "memory_limit"
        elif code == -signal.SIGXCPU or told["seconds"] >= limits.seconds:
            limit = "time_limit"
        elif max(len(output), len(errors)) >= limits.file_bytes:
            limit = "output_limit"
        elif code and errors.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
            limit = "memory_limit"
        return Ending(limit, code, output, errors, outcome)


class Watch:
    """Looks after programs that run side by side."""

    def __init__(self, running: Sequence[Running], limits: Limits) -> None:
        self._running = running
        self._limits = limits
        self._waited = 0.0

    def until_the_end(self) -> tuple[str, float]:
        """Wait until the first has ended, or a limit is reached: that limit, or an empty string,
        and the seconds that they have waited for a CPU."""
        began = before = time.monotonic()
        delayed, unclaimed = own_delay(), 0.0
        while True:
            own = self._limits.wall_seconds + self._waited
            left = began + min(own, self._limits.latest_seconds) - time.monotonic()
            if self._running[0].wait(min(_TICK, max(0.0, left))):
                return "", self._waited
            now, until_now = time.monotonic(), own_delay()
            unclaimed = min(_WINDOW, unclaimed + now - before)
            delays = sum(one.look() for one in self._running) + until_now - delayed
            self._waited += min(delays, unclaimed)
            unclaimed -= min(delays, unclaimed)
            before, delayed = now, until_now
            if limit := self._limit(now - began):
                return limit, self._waited

    def _limit(self, elapsed: float) -> str:
        for one in self._running:
            if exceeded := one.exceeded(self._limits):
                return exceeded
        if elapsed - self._waited >= self._limits.wall_seconds:
            return "time_limit"
        return "starved" if elapsed >= self._limits.latest_seconds else ""


def _content(fd: int, limit: int) -> bytes:
    return os.pread(fd, limit, 0)
