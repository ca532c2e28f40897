"""The parent of all workers: imports every verifier once, then forks workers in milliseconds.

`python -m reward.workers.fork_server CONTROL_FD MEMORY_BYTES SANDBOX [package.module:Class …]`

`reward.workers.pool` starts it. It has one thread, judges nothing, and forks only on command. It
collects a worker's exit status only on command too: until then, no other process can get the dead
worker's id, so a kill by id hits the right process.

When the service ends, its control socket closes and the fork server ends. The workers end with it
(PR_SET_PDEATHSIG).
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from reward.errors import brief
from reward.sandbox.sandbox_host import SandboxOptions
from reward.verifiers.base import Verifier
from reward.verifiers.graders.worker_verifier import WorkerGrader
from reward.verifiers.registry import build_registry
from reward.workers.protocol import (
    MAX_CONTROL,
    MAX_FAILED,
    Order,
    Reap,
    Reaped,
    Report,
    Spawned,
    SpawnWorker,
    Warm,
)
from reward.workers.worker import work
from services.runtime.process import die_with_parent

Registry = Mapping[str, Verifier[Any]]


def main() -> int:
    """Serve the control socket until it closes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes = int(sys.argv[2])
    sandbox = SandboxOptions(*json.loads(sys.argv[3]))
    everything = build_registry(sys.argv[4:], sandbox=sandbox).items()
    registry = {name: verifier for name, verifier in everything if isinstance(verifier, Verifier)}
    registry[WorkerGrader.name] = WorkerGrader(sandbox)
    failed = {}
    for name, verifier in registry.items():
        try:
            verifier.warm()
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"its warm() fails: {brief(error)}"
    # All workers share the objects built so far. A garbage collection would touch, and so copy,
    # them.
    gc.collect()
    gc.freeze()
    _report(control, Warm(dict(list(failed.items())[:MAX_FAILED])))
    # The service may end between a report and the next order.
    with contextlib.suppress(ConnectionError):
        _serve(control, registry, memory_bytes)
    return 0


def _serve(control: socket.socket, registry: Registry, memory_bytes: int) -> None:
    decoder = msgspec.msgpack.Decoder(Order)
    ending: dict[int, Reap] = {}
    while True:
        # A killed process may take a while to end (gigabytes to free): never wait for it.
        if select.select([control], [], [], 0.005 if ending else None)[0]:
            message, fds, _, _ = socket.recv_fds(control, MAX_CONTROL, 1)
            if not message:
                return
            order = decoder.decode(message)
            if isinstance(order, SpawnWorker):
                _spawn(control, order.worker, fds[0], registry, memory_bytes)
            else:
                ending[order.pid] = order
        for pid, reap in list(ending.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del ending[pid]
                _report(control, Reaped(reap.worker, status))


def _spawn(
    control: socket.socket, worker: int, fd: int, registry: Registry, memory_bytes: int
) -> None:
    parent = os.getpid()
    with socket.socket(fileno=fd) as connection:
        try:
            pid = os.fork()
        except OSError as error:
            _report(control, Spawned(worker, 0, f"fork: {error}"))
            return
        if pid == 0:
            control.close()
            _become_worker(parent, connection, registry, memory_bytes)
    _report(control, Spawned(worker, pid))


def _become_worker(
    parent: int, connection: socket.socket, registry: Registry, memory_bytes: int
) -> NoReturn:
    code = 1
    try:
        # The worker gets a process group: a deadline kills the worker and all that it has started.
        os.setsid()
        die_with_parent()
        # A closed connection is the normal end: the service has let this worker go.
        with contextlib.suppress(ConnectionError):
            if os.getppid() == parent:
                work(connection, registry, memory_bytes)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: exit handlers and buffered output belong to the fork server.
        os._exit(code)


def _report(control: socket.socket, report: Report) -> None:
    control.sendall(msgspec.msgpack.encode(report))


if __name__ == "__main__":
    sys.exit(main())
