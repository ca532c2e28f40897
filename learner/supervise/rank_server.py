"""The ranks' common parent: it imports what a rank needs once, then forks ranks in milliseconds.

    python -m learner.supervise.rank_server CONTROL_FD MODULE [ARGUMENT …]

A rank runs `MODULE.main()`, as `python -m MODULE ARGUMENT …` would. Importing torch and
transformers takes seconds of a core. The server imports them once, when the supervisor starts, so
the ranks need not at each of their starts. The server only imports and forks. It starts no threads.
Threads that numpy and pyarrow start on import survive a fork (pthread_atfork(3)).

With a GPU build of torch, a rank is a new Python process and the server imports nothing: a process
that was forked after an import called CUDA's driver cannot use a GPU.

The server collects a rank's exit status before it reports the end, and signals only ranks that it
has not collected. A signal can therefore never hit another process that got a dead rank's pid. When
the supervisor ends, the server and the ranks end too (PR_SET_PDEATHSIG).
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

from headrace.death_signal import die_with
from learner.settings import RENDEZVOUS
from learner.supervise.requests import MAX_BYTES, RankEnded, Ready, Report, Request, SpawnRank
from services.runtime.gpus import installed_device
from services.runtime.process import die_with_parent

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that the ranks handle. Some schedulers send SIGTERM to every process of a job."""


def main() -> int:
    """Serve the control socket until it closes. In a forked rank: run the rank and return its exit
    code."""
    die_with_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.argv[:2]
    # Searching the imported objects for cycles took a sixth of the imports' CPU time.
    gc.disable()
    run = _imported(sys.argv[0]) if installed_device() == "cpu" else _execute
    # Forked ranks share these objects. A collection would touch them, and so copy their pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with control:
        rank = RankForkServer(control).serve()
    if rank is None:
        return 0
    # Frozen objects are not freed at exit, and some libraries complain about that.
    atexit.register(gc.unfreeze)
    os.environ.update(rank.environment)
    return run() or 0


def _imported(module: str) -> Callable[[], int | None]:
    run: Callable[[], int | None] = importlib.import_module(module).main
    return run


def _execute() -> int:
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv])


class RankForkServer:
    """Forks ranks on the supervisor's requests, and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: dict[int, tuple[int, int]] = {}
        """(pid, number on this host) of each rank, by its pidfd."""

    def serve(self) -> SpawnRank | None:
        """Serve requests. Return None when the supervisor ends. In a new rank, return its
        request."""
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
                if isinstance(request, SpawnRank):
                    if self._is_rank(request, files):
                        return request
                else:
                    for pid, _ in self._ranks.values():
                        os.kill(pid, signal.SIGTERM)
        return None

    def _is_rank(self, request: SpawnRank, files: list[int]) -> bool:
        """Fork a rank. Return True in the rank, which leaves this server, and False in the
        server."""
        parent = os.getpid()
        # A signal between the fork and the rank's own handlers is delivered after the handlers are
        # set.
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
        self._report(RankEnded(local, os.waitstatus_to_exitcode(status)))

    def _report(self, report: Report) -> None:
        self._control.sendall(msgspec.msgpack.encode(report))


if __name__ == "__main__":
    sys.exit(main())
