"""The service's side of the sandbox: starts programs, watches their limits, and ends them.

Runs in a verifier's worker, which may be killed at any moment: everything started here then ends
too, by the kernel (parent death signals, process namespaces). Programs get descriptors of files in
memory for what they read and write, so nobody has to pump their output, and a limit on file sizes
is a limit on output. Nothing that a program must not know ever enters its sandbox.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reward.sandbox import cgroup
from reward.sandbox.jail import HOME
from reward.sandbox.limits import PAUSE, RESUME, WITHOUT_CGROUP, Limits
from reward.sandbox.usage import Usage, own_delay

ROOT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *sys.path[1:]]; "
    "from reward.sandbox.zygote import main; del sys.path[0]; main()"
)
_TICK = 0.02
"""Seconds between two looks at what a program uses."""
_WINDOW = 2.0
"""Seconds. A program waits for a CPU at most that long at a stretch, or the rest counts as its own
time: several threads that wait at once must not add up."""
_PATIENCE = 20.0
"""Seconds for what takes milliseconds; then the system is to blame, and no answer."""
_MAX_MESSAGE = 1 << 16


class SandboxError(Exception):
    """The sandbox cannot be used: the message says why."""


class SandboxOptions(NamedTuple):
    """What the operator decides."""

    isolated: bool = True
    """Off: programs see the host's files, network and processes."""
    python: str = ""
    """The interpreter that runs programs; by default the one that this one builds on."""


class Task(NamedTuple):
    """One program, as `reward.sandbox.program` takes it."""

    what: dict[str, Any]
    stdin: bytes = b""


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


class Sandbox:
    """A zygote, and the programs that it starts. One caller at a time."""

    def __init__(self, options: SandboxOptions) -> None:
        """Raises SandboxError."""
        self._options = options
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_PATIENCE)
        self._cgroup = cgroup.delegated()
        if self._cgroup is not None:
            cgroup.remove_left_behind(self._cgroup)
        python = options.python or getattr(sys, "_base_executable", sys.executable)
        setup = {"isolated": options.isolated, "counted": self._cgroup is not None}
        arguments = [str(ROOT), str(theirs.fileno()), json.dumps(setup)]
        with theirs:
            try:
                self._zygote = subprocess.Popen(
                    [python, "-sB", "-X", "utf8", "-c", _BOOT, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    # The kernel shares CPU time between sessions: however many processes a program
                    # has, its worker gets as much, and other workers' programs do.
                    start_new_session=True,
                    # The order of sets must not decide a test.
                    env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                )
            except OSError as error:
                self._control.close()
                raise SandboxError(f"{python} cannot be started: {error.strerror}") from None
        try:
            started, _ = self._receive()
        except SandboxError:
            self.close()
            raise
        self.filtered = bool(started["filter"])

    @property
    def layers(self) -> str:
        """What stands between programs and the host, for people."""
        walls = ["namespaces of their own"] if self._options.isolated else ["NO isolation"]
        walls += ["a filter of system calls"] if self.filtered else []
        walls += ["a cgroup for each"] if self._cgroup is not None else []
        return f"programs run with {', '.join(walls)}"

    def close(self) -> None:
        """End the zygote, and with it all programs."""
        self._control.close()
        self._zygote.kill()
        self._zygote.wait()

    def run(self, tasks: Sequence[Task], limits: Limits) -> list[Ending]:
        """Run the tasks side by side until the first has ended; then end the others.

        Two are connected by a socket. Raises SandboxError where the sandbox breaks down.
        """
        with contextlib.ExitStack() as stack:
            sockets: Sequence[socket.socket] = ()
            if len(tasks) == 2:
                sockets = socket.socketpair()
            running = []
            try:
                for number, task in enumerate(tasks):
                    channel = sockets[number : number + 1]
                    running.append(stack.enter_context(self._start(task, limits, channel)))
            finally:
                for end in sockets:
                    end.close()
            stopped, waited = _Watch(running, limits).until_the_end()
            for one in running:
                one.end()
            if not all(one.wait(_PATIENCE) for one in running):
                raise SandboxError("a program cannot be killed")
            return [one.ending(stopped, limits)._replace(waited=waited) for one in running]

    @contextlib.contextmanager
    def _start(
        self, task: Task, limits: Limits, channel: Sequence[socket.socket]
    ) -> Iterator["_Running"]:
        with contextlib.ExitStack() as stack:
            contents = (_json(task.what), task.stdin, b"", b"", b"", b"")
            what, stdin, output, errors, outcome, report = (_file(stack, c) for c in contents)
            fds = [report, what, stdin, output, errors, *(one.fileno() for one in channel)]
            folder = HOME
            if not self._options.isolated:
                # A process that was not found may still write there.
                temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                folder = stack.enter_context(temporary)
            order = {
                "folder": folder,
                "memory": limits.memory_bytes,
                "file": limits.file_bytes,
                "seconds": max(1, -int(-limits.seconds // 1)),
            }
            if task.what["kind"] == "test":
                fds.append(outcome)
            group = self._new_group(stack, limits)
            if group is not None:
                fds.append(group.entrance)
            try:
                socket.send_fds(self._control, [_json(order)], fds)
            except OSError as error:
                raise SandboxError(f"the sandbox has ended: {error.strerror}") from None
            reply, (pidfd,) = self._receive()
            stack.callback(os.close, pidfd)
            files = (report, output, errors, outcome)
            one = _Running(reply["pid"], pidfd, self._options.isolated, files, group)
            stack.callback(one.end)
            yield one

    def _new_group(self, stack: contextlib.ExitStack, limits: Limits) -> cgroup.ProgramGroup | None:
        if self._cgroup is None:
            return None
        try:
            group = cgroup.ProgramGroup(self._cgroup, limits)
        except OSError as error:
            raise SandboxError(f"no cgroup can be made: {error}") from None
        stack.callback(group.close)
        return group

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 1)
        except OSError as error:
            raise SandboxError(f"the sandbox does not answer: {error}") from None
        if not message:
            raise SandboxError(f"the sandbox ended with exit code {self._zygote.wait()}")
        reply = json.loads(message)
        if "problem" in reply:
            raise SandboxError(reply["problem"])
        return reply, fds


class _Running:
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


class _Watch:
    """Looks after programs that run side by side."""

    def __init__(self, running: Sequence[_Running], limits: Limits) -> None:
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


def _file(stack: contextlib.ExitStack, content: bytes) -> int:
    """A file in memory, at its beginning; it lives as long as `stack`, or a program that has it."""
    fd = os.memfd_create("headrace")
    stack.callback(os.close, fd)
    if content:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _content(fd: int, limit: int) -> bytes:
    return os.pread(fd, limit, 0)
