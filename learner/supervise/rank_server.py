"""The ranks' common parent: imports what a rank needs once, then forks ranks in milliseconds.

    python -m learner.supervise.rank_server CONTROL_FD MODULE [ARGUMENT …]

A rank runs `MODULE.main()`, as `python -m MODULE ARGUMENT …` would. Torch and transformers take
seconds of a core to import: so they are imported when the supervisor starts, and not by each rank
at each of its starts. Trains nothing, and starts no thread: those that numpy and pyarrow start as
they are imported can be forked (pthread_atfork(3)).

With a build for GPUs a rank is a new Python, and nothing is imported here: a fork of a process in
which any import has called CUDA's driver cannot use a GPU.

Collects a rank's exit status before it reports it, and signals only ranks that it has not
collected: so no signal hits a stranger with a dead rank's pid. When the supervisor ends, so does
this, and so do the ranks (PR_SET_PDEATHSIG).
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from learner.settings import RENDEZVOUS
from learner.supervise.requests import MAX_BYTES, Ended, Ready, Report, Request, Spawn
from services.runtime.gpus import installed_device
from services.runtime.process import die_with, die_with_parent

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Those of the ranks. Some schedulers send SIGTERM to every process of a job."""


def main() -> int:
    """Serve the control socket until it closes. In a rank: be that rank; returns its exit code."""
    die_with_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.argv[:2]
    # Looking for cycles among what is imported took a sixth of the CPU time that the imports take.
    gc.disable()
    run = _imported(sys.argv[0]) if installed_device() == "cpu" else _execute
    # What is built by now is shared with the ranks; a collection would touch, and so copy, it.
    gc.collect()
    gc.freeze()
    gc.enable()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with control:
        rank = Server(control).serve()
    if rank is None:
        return 0
    # What is frozen is not freed at the end, and libraries complain of that.
    atexit.register(gc.unfreeze)
    os.environ.update(rank.environment)
    return run() or 0


def _imported(module: str) -> Callable[[], int | None]:
    run: Callable[[], int | None] = importlib.import_module(module).main
    return run


def _execute() -> int:
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv])


class Server:
    """The ranks that run, and the supervisor's socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: dict[int, tuple[int, int]] = {}
        """By a pidfd: the pid, and the number among this host's ranks."""

    def serve(self) -> Spawn | None:
        """Until the supervisor ends: None. In a new rank: what that rank is to be."""
        decoder = msgspec.msgpack.Decoder(Request)
        # The supervisor may end between a report and its next request.
        with contextlib.suppress(ConnectionError):
            self._report(Ready())
            while True:
                watched: list[socket.socket | int] = [self._control, *self._ranks]
                ready, _, _ = select.select(watched, [], [])
                for pidfd in self._ranks.keys() & set(ready):
                    self._collect(pidfd)
                if self._control not in ready:
                    continue
                message, files, _, _ = socket.recv_fds(self._control, MAX_BYTES, 1)
                if not message:
                    break
                request = decoder.decode(message)
                if isinstance(request, Spawn):
                    if self._is_rank(request, files):
                        return request
                else:
                    for pid, _ in self._ranks.values():
                        os.kill(pid, signal.SIGTERM)
        return None

    def _is_rank(self, request: Spawn, files: list[int]) -> bool:
        """Fork: True in the rank, which has no part in this server; False in the server."""
        parent = os.getpid()
        # A signal between the fork and the rank's own handlers is delivered then.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            die_with(parent)()
            for pidfd in self._ranks:
                os.close(pidfd)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for file in files:
            if pid == 0:
                os.set_inheritable(file, True)
                request.environment[RENDEZVOUS] = f"/proc/self/fd/{file}"
            else:
                os.close(file)
        if pid != 0:
            self._ranks[os.pidfd_open(pid)] = (pid, request.local)
        return pid == 0

    def _collect(self, pidfd: int) -> None:
        pid, local = self._ranks.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._report(Ended(local, os.waitstatus_to_exitcode(status)))

    def _report(self, report: Report) -> None:
        self._control.sendall(msgspec.msgpack.encode(report))


if __name__ == "__main__":
    sys.exit(main())
