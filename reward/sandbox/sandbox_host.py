"""The service's side of the sandbox: starts programs, watches their limits, and ends them.

It runs in a verifier's worker, which may be killed at any moment. The kernel then ends everything
that was started here (parent death signals, process namespaces). Programs read and write files in
memory, through descriptors. So no thread copies their output, and a limit on file sizes limits the
output. Secrets stay outside the sandbox.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reward.sandbox import cgroup
from reward.sandbox.jail import HOME
from reward.sandbox.limits import Limits
from reward.sandbox.running_program import ProgramEnding, RunningProgram, SandboxError
from reward.sandbox.time_limit import Watch

ROOT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *sys.path[1:]]; "
    "from reward.sandbox.zygote import main; del sys.path[0]; main()"
)
_PATIENCE = 20.0
"""Seconds for work of milliseconds. After them, the system is to blame and not the answer."""
_MAX_MESSAGE = 1 << 16


class SandboxOptions(NamedTuple):
    """The operator's settings of the sandbox."""

    isolated: bool = True
    """False: programs see the host's files, network and processes."""
    python: str = ""
    """The interpreter that runs programs. Default: the base interpreter of this one."""


class ProgramTask(NamedTuple):
    """One program, in the form of `reward.sandbox.program`."""

    what: dict[str, Any]
    stdin: bytes = b""


class Sandbox:
    """A zygote and its programs. One caller at a time."""

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
                    # The kernel divides CPU time between sessions. However many processes a program
                    # has, its worker and the other workers' programs get an equal part.
                    start_new_session=True,
                    # A fixed hash seed: the order of sets must not decide a test.
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
        """Describe, for people, the layers between programs and the host."""
        walls = ["namespaces of their own"] if self._options.isolated else ["NO isolation"]
        walls += ["a filter of system calls"] if self.filtered else []
        walls += ["a cgroup for each"] if self._cgroup is not None else []
        return f"programs run with {', '.join(walls)}"

    def close(self) -> None:
        """End the zygote, and with it all programs."""
        self._control.close()
        self._zygote.kill()
        self._zygote.wait()

    def run(self, tasks: Sequence[ProgramTask], limits: Limits) -> list[ProgramEnding]:
        """Run the tasks side by side until the first has ended; then end the others. A socket
        connects two tasks. Raises SandboxError if the sandbox breaks down."""
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
            stopped, waited = Watch(running, limits).until_the_end()
            for program in running:
                program.end()
            if not all(program.wait(_PATIENCE) for program in running):
                raise SandboxError("a program cannot be killed")
            return [program.ending(stopped, limits)._replace(waited=waited) for program in running]

    @contextlib.contextmanager
    def _start(
        self, task: ProgramTask, limits: Limits, channel: Sequence[socket.socket]
    ) -> Iterator[RunningProgram]:
        with contextlib.ExitStack() as stack:
            contents = (_json(task.what), task.stdin, b"", b"", b"", b"")
            what, stdin, output, errors, outcome, report = (_file(stack, c) for c in contents)
            fds = [report, what, stdin, output, errors, *(end.fileno() for end in channel)]
            folder = HOME
            if not self._options.isolated:
                # A process that the search missed may still write there.
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
            program = RunningProgram(reply["pid"], pidfd, self._options.isolated, files, group)
            stack.callback(program.end)
            yield program

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


def _file(stack: contextlib.ExitStack, content: bytes) -> int:
    """Return a file in memory, at its beginning. It lives as long as `stack`, or a program that has
    it."""
    fd = os.memfd_create("headrace")
    stack.callback(os.close, fd)
    if content:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
