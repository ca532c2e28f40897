"""The child processes of the service: the fork server and its workers.

The module starts, sends, kills, and reports `WorkerEvents`. It decides nothing: `scheduler`
assigns items, and `pool` reacts to deaths. It kills by process id only while the fork server lives.
The fork server collects an exit status only on command, so an id here always names the same
process.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from reward.frames import Unpacker, pack
from reward.sandbox.sandbox_host import SandboxOptions
from reward.workers.protocol import (
    MAX_CONTROL,
    Answer,
    Order,
    Reap,
    Reaped,
    Report,
    Spawned,
    SpawnWorker,
    Warm,
    WorkerJob,
)
from reward.workers.worker import READY
from services.runtime.logs import get_logger

log = get_logger(__name__)

REAP_AGAIN = 0.05
"""Seconds before an order to collect dead workers is sent again to a fork server that reads no
orders: hundreds of orders fill its socket."""


class WorkerOptions(NamedTuple):
    memory_bytes: int
    """The maximum of memory that a worker may add to its parent's."""
    own_verifiers: Sequence[str] = ()
    sandbox: SandboxOptions = SandboxOptions()


class WorkerEvents(Protocol):
    """The receiver of the child processes' events. A number identifies a worker."""

    def on_warm(self, failed: dict[str, str]) -> None:
        """The fork server has imported the verifiers."""

    def on_fork_server_end(self, exit_code: int, workers: list[int]) -> None:
        """The fork server ended, and with it these ready workers. No `on_ending` follows, not even
        for workers that were lost before."""

    def on_ready(self, worker: int) -> None:
        """The worker can take jobs."""

    def on_not_forked(self, worker: int, problem: str) -> None:
        """The worker does not exist, or ended before it was ready."""

    def on_answer(self, worker: int, answer: Answer) -> None:
        """The worker's verdict on its job."""

    def on_lost(self, worker: int, unread: bool) -> None:
        """A ready worker ended, and this service did not kill it. `on_ending` follows. `unread`:
        the worker ended before it read its last job, so another cause killed it."""

    def on_ending(self, worker: int, cause: str) -> None:
        """Report, in words, how the lost worker ended."""


class _WorkerSocket(asyncio.Protocol):
    def __init__(self, children: "Children", number: int) -> None:
        self.children = children
        self.number = number
        self.pid = 0
        self.ready = False
        self.unread = False
        """Whether the last job cannot have reached the worker, because it ended before the job was
        sent."""
        self.transport: asyncio.Transport | None = None
        self._unpacker = Unpacker()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports derive from no class of asyncio.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for body in self._unpacker.feed(data):
            self.children.on_frame(self, body)

    def connection_lost(self, exc: Exception | None) -> None:
        # The kernel resets a connection whose peer closes with unread bytes.
        self.unread = self.unread or isinstance(exc, ConnectionError)
        self.children.on_closed(self)


class Children:
    """The fork server and its workers. Belongs to one event loop."""

    def __init__(self, owner: WorkerEvents, options: WorkerOptions) -> None:
        self._owner = owner
        sandbox = json.dumps(options.sandbox)
        self._argv = [str(options.memory_bytes), sandbox, *options.own_verifiers]
        self._links: dict[int, _WorkerSocket] = {}
        self._lost: set[int] = set()
        self._unsent: list[Reap] = []
        """Orders that the full control socket did not take."""
        self._connecting: set[asyncio.Task[Any]] = set()
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._reports = msgspec.msgpack.Decoder(Report)

    @property
    def can_fork(self) -> bool:
        """Tell whether a fork server can take orders."""
        return self._control is not None

    @property
    def pids(self) -> list[int]:
        return [link.pid for link in self._links.values() if link.pid]

    def start_fork_server(self) -> None:
        """Start the workers' parent. A fork order may be sent at once: it waits until the parent is
        warm. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ExitStack() as failed:
            failed.callback(ours.close)
            self._fork_server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "reward.workers.fork_server",
                    str(theirs.fileno()),
                    *self._argv,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # The output of verifiers goes to the log, like their stderr.
                stdout=2,
                # Ctrl-C is for the service, which drains first.
                start_new_session=True,
                # A fixed hash seed: the order of sets must not decide a comparison.
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )
            failed.pop_all()
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_report)

    def fork(self, worker: int) -> None:
        """Order the fork of a worker. `on_ready` or `on_not_forked` follows. After OSError, neither
        follows."""
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as failed:
            failed.callback(ours.close)
            self._order(SpawnWorker(worker), theirs.fileno())
            failed.pop_all()
        link = _WorkerSocket(self, worker)
        self._links[worker] = link
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(loop.create_connection(lambda: link, sock=ours))
        # The loop itself keeps no task alive.
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def send(self, worker: int, job: WorkerJob) -> None:
        link = self._links[worker]
        assert link.transport is not None
        # The loop has read the end of the stream, and calls `connection_lost` in its next round.
        # Until then, a transport drops all that is written to it.
        link.unread = link.transport.is_closing()
        link.transport.write(pack(job))

    def kill(self, worker: int) -> None:
        """Kill the worker and its descendants now. No more events of the worker follow."""
        link = self._links.pop(worker, None)
        if link is not None:
            self._end(link)

    async def close(self) -> None:
        """Kill everything, and wait until the fork server has ended."""
        for worker in list(self._links):
            self.kill(worker)
        self._drop_control()
        fork_server = self._fork_server
        if fork_server is None:
            return
        # The fork server ends when its control socket closes, unless it hangs in an import.
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, fork_server.wait, 2.0)
        except subprocess.TimeoutExpired:
            fork_server.kill()
            await loop.run_in_executor(None, fork_server.wait)

    def on_frame(self, link: _WorkerSocket, body: bytes) -> None:
        """Handle a worker's message: it is up, or has a verdict."""
        if self._links.get(link.number) is not link:
            return
        if body == READY:
            link.ready = True
            self._owner.on_ready(link.number)
            return
        try:
            answer = self._answers.decode(body)
        except msgspec.MsgspecError as error:
            # Only a verifier that writes to its worker's sockets can cause this.
            log.error("a worker process sends nonsense", problem=str(error))
            self.on_closed(link)
        else:
            self._owner.on_answer(link.number, answer)

    def on_closed(self, link: _WorkerSocket) -> None:
        """Handle the end of a worker's socket: the worker was killed here, or died by itself."""
        if link.number in self._links:
            # A dying fork server closes its control socket first, and then takes its workers with
            # it. Find that out before workers that are dying too are given work.
            while self._on_report():
                pass
        if self._links.pop(link.number, None) is None:
            return
        if link.ready:
            self._lost.add(link.number)
            self._owner.on_lost(link.number, link.unread)
            self._end(link)
        else:
            self._end(link)
            self._owner.on_not_forked(link.number, "it ended before it was ready")

    def _end(self, link: _WorkerSocket) -> None:
        """Close the worker's socket, kill the worker, and have its exit status collected."""
        if link.transport is not None:
            link.transport.abort()
        if link.pid and self._fork_server is not None and self._fork_server.poll() is None:
            _kill_group(link.pid)
            self._reap(Reap(link.number, link.pid))

    def _reap(self, *orders: Reap) -> None:
        """Have dead workers collected, now or a little later. Uncollected workers stay zombies, and
        nobody would learn how they ended."""
        waited = bool(self._unsent)
        self._unsent += orders
        if not waited:
            self._send_unsent()

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                self._order(self._unsent[0])
                self._unsent.pop(0)
        except OSError:
            asyncio.get_running_loop().call_later(REAP_AGAIN, self._send_unsent)

    def _order(self, order: Order, *fds: int) -> None:
        """Send an order. Raises OSError, for example if the socket is full."""
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(order)], list(fds))
        except ConnectionError:
            # The fork server has ended; its last report, the end of file, follows.
            return

    def _on_report(self) -> bool:
        """Take the fork server's next report. Return whether there was a report."""
        if self._control is None:
            return False
        try:
            message = self._control.recv(MAX_CONTROL)
        except BlockingIOError:
            return False
        except ConnectionError:
            message = b""
        if not message:
            self._on_fork_server_end()
            return False
        match self._reports.decode(message):
            case Spawned(worker, pid, problem):
                self._on_spawned(worker, pid, problem)
            case Reaped(worker, status):
                if worker in self._lost:
                    self._lost.remove(worker)
                    self._owner.on_ending(worker, _ending(status))
            case Warm(failed):
                self._owner.on_warm(failed)
        return True

    def _on_spawned(self, worker: int, pid: int, problem: str) -> None:
        link = self._links.get(worker)
        if pid and link is not None:
            link.pid = pid
        elif pid:
            # The worker was given up before its id was known.
            _kill_group(pid)
            self._reap(Reap(worker, pid))
        elif link is not None:
            self.kill(worker)
            self._owner.on_not_forked(worker, problem)

    def _on_fork_server_end(self) -> None:
        self._drop_control()
        fork_server, self._fork_server = self._fork_server, None
        code = fork_server.wait() if fork_server is not None else 0
        links, self._links = self._links, {}
        self._lost.clear()
        for link in links.values():
            if link.transport is not None:
                link.transport.abort()
            if not link.ready:
                self._owner.on_not_forked(link.number, "the workers' parent process ended")
        self._owner.on_fork_server_end(code, [link.number for link in links.values() if link.ready])

    def _drop_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            # The fork server's end collects its workers.
            self._unsent.clear()


def _kill_group(pid: int) -> None:
    """Kill a worker and its descendants. If the worker leads no group yet, kill the worker
    alone."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
