"""The parent of all sandboxed programs of one worker: enters the jail once, then forks.

`python -c 'import …; main()' CONTROL_FD SETUP`

The zygote is a fresh interpreter with an empty environment, so its forks inherit nothing of the
host. Each program gets its own process, mount and IPC namespaces. Their first process is ours; when
it ends, the kernel ends all others. SETUP is JSON: whether there are namespaces (`isolated`), and
whether each program gets a cgroup (`counted`). Output and verdicts bypass the zygote.
"""

import atexit
import contextlib
import importlib
import json
import os
import resource
import select
import selectors
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from reward.sandbox import jail, linux
from reward.sandbox.limits import (
    HOME_BYTES,
    PAUSE,
    RESUME,
    WITH_CGROUP,
    WITHOUT_CGROUP,
    limit_process,
)
from reward.sandbox.program import run
from reward.sandbox.seccomp import for_programs

# Programs import these modules most: here they are imported once.
IMPORTED = (
    "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
)  # fmt: skip
MAX_ORDER = 1 << 16


def main() -> None:
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # Interrupts are for the service. Programs get Python's default handling back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        zygote = Zygote(control, **json.loads(sys.argv[2]))
    except OSError as error:
        control.sendall(json.dumps({"problem": error.strerror or str(error)}).encode())
        return
    control.sendall(json.dumps({"filter": zygote.filter is not None}).encode())
    zygote.serve()


class Zygote:
    """The loop that starts programs on the service's orders."""

    def __init__(self, control: socket.socket, *, isolated: bool, counted: bool) -> None:
        self.filter = for_programs(counted=counted, isolated=isolated)
        if self.filter is not None and not counted:
            # Chosen when `socket` was imported; the filter has no epoll.
            selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
        self._control = control
        self._isolated = isolated
        self._counted = counted
        for name in IMPORTED:
            importlib.import_module(name)
        self._mapped = _mapped_bytes()
        self._self = os.pidfd_open(os.getpid())
        self._switch_user = False
        self._hidden: list[str] = []
        if isolated:
            self._switch_user = jail.enter_namespaces()
            self._hidden = jail.build_root()
        os.environ.clear()
        os.environ.update({"HOME": jail.HOME, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})

    def serve(self) -> None:
        """Start the ordered programs. Each order comes with the descriptors of its program."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, MAX_ORDER, 8)
            while _reap():
                pass
            if not message:
                return
            self._start(json.loads(message), fds)

    def _start(self, order: dict[str, Any], fds: list[int]) -> None:
        flags = linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
        passed: list[int] = []
        try:
            pid = linux.clone(flags if self._isolated else 0)
        except OSError as error:
            reply: dict[str, Any] = {"problem": error.strerror}
        else:
            if pid == 0:
                self._become_first(order, *fds)
            reply = {"pid": pid}
            passed.append(os.pidfd_open(pid))
        socket.send_fds(self._control, [json.dumps(reply).encode()], passed)
        for fd in [*fds, *passed]:
            os.close(fd)

    def _become_first(self, order: dict[str, Any], report: int, task: int, *fds: int) -> NoReturn:
        """Become the first process of the program's namespaces: start the program, and report its
        end."""
        try:
            self._control.close()
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            if select.select([self._self], [], [], 0)[0]:
                os._exit(1)
            # A program of the same user must not trace this process.
            linux.prctl(linux.PR_SET_DUMPABLE, 0)
            if self._isolated:
                jail.mount_home(HOME_BYTES, self._hidden)
                signal.signal(PAUSE, lambda *_: _signal_all(signal.SIGSTOP))
                signal.signal(RESUME, lambda *_: _signal_all(signal.SIGCONT))
            else:
                # Orphans of the program become children of this process, which finds them.
                linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
                signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            program = os.fork()
            if program == 0:
                self._become_program(order, report, task, *fds)
            # The descriptors stay open here, too. So the other end of a socket learns of the
            # program's end only after the report.
            ended = 0
            while ended != program:
                ended, status, _ = os.wait4(-1, 0)
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            _report(report, status=status, seconds=usage.ru_utime + usage.ru_stime)
        except SystemExit:
            # SIGTERM has ended this process: it sends no report.
            pass
        except BaseException as error:
            _report(report, problem=f"{type(error).__name__}: {error}")
        finally:
            if not self._isolated:
                _kill_children()
            os._exit(0)

    def _become_program(self, order: dict[str, Any], report: int, task: int, *fds: int) -> NoReturn:
        """Become the program. An exception here must never return to the code that forked."""
        code = 1
        try:
            wanted = self._prepare(order, report, task, list(fds))
            run(wanted)
            code = 0
        except SystemExit as error:
            code = _exit_code(error.code)
        finally:
            _end(code)

    def _prepare(
        self, order: dict[str, Any], report: int, task: int, fds: list[int]
    ) -> dict[str, Any]:
        try:
            if self._counted:
                os.write(fds.pop(), b"0")
            os.chdir(order["folder"])
            os.environ.update(HOME=order["folder"], TMPDIR=order["folder"])
            with open(task, "rb", closefd=False) as file:
                wanted: dict[str, Any] = json.load(file)
            self._give_up_rights(order)
        except BaseException as error:
            _report(report, problem=f"{type(error).__name__}: {error}")
            os._exit(1)
        _place(fds)
        _forget()
        return wanted

    def _give_up_rights(self, order: dict[str, Any]) -> None:
        if self._switch_user:
            os.setresgid(jail.NOBODY, jail.NOBODY, jail.NOBODY)
            os.setresuid(jail.NOBODY, jail.NOBODY, jail.NOBODY)
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        # The service counts this process's memory. Only a dumpable process shows it to its owner.
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        numbers = WITH_CGROUP if self._counted else WITHOUT_CGROUP
        limit_process(order["memory"] + self._mapped, order["file"], order["seconds"], numbers)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, PAUSE, RESUME):
            signal.signal(number, signal.SIG_DFL)
        if self.filter is not None:
            self.filter.load()


def _signal_all(number: int) -> None:
    """Signal all other processes, from the first process of a process namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def _kill_children() -> None:
    """Kill the remaining descendants of this process, which adopts all orphans."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for pid in children.read().split():
                # Only this process waits for them, so no id has passed to another process.
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _report(fd: int, **what: Any) -> None:
    os.write(fd, json.dumps(what).encode() + b"\n")


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _place(fds: list[int]) -> None:
    """Make `fds` the descriptors 0, 1, 2, …, and close all others."""
    high = [os.dup2(fd, 32 + number) for number, fd in enumerate(fds)]
    for number, fd in enumerate(high):
        os.dup2(fd, number)
    os.closerange(len(fds), 1024)


def _forget() -> None:
    """Forget this service's modules, so that a program's imports find its own modules first."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "reward"]:
        del sys.modules[name]


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _end(code: int) -> NoReturn:
    """End as the interpreter does, but without destructors, since most objects are the zygote's."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        # Python's own exit code for output that could not be written.
        code = code or 120
    finally:
        os._exit(code)
