"""A running program in the sandbox: its use while it runs, and its end. `time_limit` watches it."""

import contextlib
import json
import os
import select
import signal
from collections.abc import Sequence
from typing import NamedTuple

from reward.sandbox import cgroup
from reward.sandbox.limits import PAUSE, RESUME, WITHOUT_CGROUP, Limits
from reward.sandbox.usage import Usage


class SandboxError(Exception):
    """The sandbox cannot be used. The message says why."""


class ProgramEnding(NamedTuple):
    """How a program ended."""

    limit: str
    """`time_limit`, `memory_limit`, `output_limit`, `process_limit`, or empty. `starved`: the
    program was within its time, but got too little CPU time to go on waiting."""
    code: int | None
    """Exit code, or minus the signal. None if this service ended the program."""
    output: bytes
    errors: bytes
    outcome: bytes
    """The report of a test; see `reward.sandbox.program`."""
    waited: float = 0.0
    """Seconds of the run in which a process waited for a CPU."""


class RunningProgram:
    """Measures and ends one program. The pidfd of its first process stands for the program."""

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
        # The end of the first process ends its namespaces. Without namespaces, the first process
        # has to clean up.
        self._signal = signal.SIGKILL if isolated else signal.SIGTERM
        self._files = files

    def look(self) -> float:
        """Measure the use of the program's processes. Return how many seconds they have waited for
        a CPU since the last measurement."""
        return self._usage.read()

    def exceeded(self, limits: Limits) -> str:
        """Return the limit that the processes together exceeded at the last measurement. Return an
        empty string if they exceeded none."""
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
        """Signal the first process to stop or continue all other processes. Stopped processes take
        no memory."""
        if self._isolated:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, self._signal)

    def wait(self, seconds: float) -> bool:
        """Tell whether all processes have ended, or end within that many seconds."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def ending(self, stopped: str, limits: Limits) -> ProgramEnding:
        """Return how the program ended, once it has. Raises SandboxError if the program did not
        cause the end."""
        report, *files = (_content(file, limits.file_bytes) for file in self._files)
        output, errors, outcome = files
        if not report:
            return ProgramEnding(stopped, None, output, errors, outcome)
        # A program that could not be started reports that itself, before its end is reported.
        status = json.loads(report.splitlines()[0])
        if "problem" in status:
            raise SandboxError(status["problem"])
        code = os.waitstatus_to_exitcode(status["status"])
        limit = stopped
        if self._group is not None and self._group.out_of_memory:
            limit = "memory_limit"
        elif code == -signal.SIGXCPU or status["seconds"] >= limits.seconds:
            limit = "time_limit"
        elif max(len(output), len(errors)) >= limits.file_bytes:
            limit = "output_limit"
        elif code and errors.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
            limit = "memory_limit"
        return ProgramEnding(limit, code, output, errors, outcome)


def _content(fd: int, limit: int) -> bytes:
    return os.pread(fd, limit, 0)
