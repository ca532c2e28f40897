"""The processes of one start on one host, and the server that starts them."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from learner.settings import RENDEZVOUS, STARTS
from learner.supervise.nodes import Start
from learner.supervise.requests import MAX_BYTES, Ended, Report, Request, Spawn, Terminate
from services.runtime.children import signal_child
from services.runtime.logs import get_logger
from services.runtime.process import die_with, kill_marked
from services.runtime.threads import WAITING

log = get_logger(__name__)

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL, for ranks that cannot go on because another has ended. They have nothing
to finish: only a step of all ranks counts."""
MARKER = "HEADRACE_RANKS_OF"
"""In the environment of all ranks that one supervisor has, and of their descendants."""
QUIET = {
    # A port on which NCCL answers whoever asks, and a file of pickles in /tmp.
    "NCCL_RAS_ENABLE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # setproctitle would overwrite the environment that the marker is read from.
    "SPT_NOENV": "1",
}
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Names of torch's setting for GPU memory, the one that counts first."""
EXPANDABLE = {ALLOCATOR[-1]: "expandable_segments:True"}
"""Micro-batches of many sizes leave less memory unusable. Not for vLLM, which sleeps in a pool that
must not grow."""


def _allocation() -> dict[str, str]:
    """Torch's setting for GPU memory, unless the user has one."""
    return {} if any(name in os.environ for name in ALLOCATOR) else EXPANDABLE


class RankServer:
    """The process that starts ranks (`learner.supervise.rank_server`); a new one when it dies.

    It ends with the supervisor, however that ends, and all ranks end with it.
    """

    def __init__(self, module: Sequence[str]) -> None:
        """Ranks are as `python -m MODULE` would be; the module has a `main()`."""
        self._module = module
        self._marker = {MARKER: secrets.token_hex(16)}
        self._process: asyncio.subprocess.Process | None = None
        self._ready = self._ending = False
        self._ranks: dict[int, asyncio.Future[int]] = {}

    async def start(self) -> None:
        """Start it, if it does not run. It imports for seconds, and takes requests meanwhile."""
        if self._process is not None:
            return
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with control:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "learner.supervise.rank_server", str(control.fileno())),
                *self._module,
                env=WAITING | _allocation() | os.environ | QUIET | self._marker,
                pass_fds=[control.fileno()],
                # Ctrl-C is for the supervisor.
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        self._ready = self._ending = False
        self._watch = asyncio.create_task(self._listen(self._process))

    def spawn(self, local: int, environment: dict[str, str], files: Sequence[int]) -> None:
        """Start a rank with this number on this host."""
        self._ranks[local] = asyncio.get_running_loop().create_future()
        self._send(Spawn(local, environment), files)

    @property
    def ranks(self) -> list[asyncio.Future[int]]:
        """How each rank has ended, once it has: an exit code, or minus the number of a signal."""
        return list(self._ranks.values())

    def terminate(self) -> None:
        """SIGTERM to all ranks; to the server, if it still imports for them."""
        if self._ready:
            self._send(Terminate())
        elif self._process is not None:
            # Once it has imported everything it ignores the signal, before it is known to be ready.
            self._ending = True
            signal_child(self._process, signal.SIGTERM)

    async def kill_ranks(self) -> None:
        """SIGKILL to all ranks and to what they have started, but not to this server."""
        spared = [self._process.pid] if self._process is not None else []
        _, alive = await asyncio.to_thread(kill_marked, self._marker, spared=spared)
        if alive:
            log.error("processes survived SIGKILL", pids=alive)

    async def close(self) -> None:
        """End the server. Call it when no rank runs any more."""
        if self._process is not None:
            signal_child(self._process, signal.SIGKILL)
            await self._watch

    def _send(self, request: Request, files: Sequence[int] = ()) -> None:
        # If it has died, `_listen` notices that as well.
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], files)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Take its reports until it ends."""
        loop, decoder = asyncio.get_running_loop(), msgspec.msgpack.Decoder(Report)
        with self._control, contextlib.suppress(ConnectionError):
            while message := await loop.sock_recv(self._control, MAX_BYTES):
                report = decoder.decode(message)
                if isinstance(report, Ended):
                    self._ranks[report.local].set_result(report.code)
                else:
                    self._ready = True
                    if self._ending:
                        self.terminate()
        code = await process.wait()
        self._process, self._ready = None, False
        for rank in self._ranks.values():
            if not rank.done():
                rank.set_result(code)


class RankProcesses:
    """The ranks of one start on this host."""

    def __init__(self, start: Start, server: RankServer) -> None:
        self.start = start
        self._server = server

    async def spawn(self, starts: int) -> None:
        """Start them. `starts`: how often ranks have been started before."""
        await self._server.start()
        where = self.start.rendezvous
        for local in range(self.start.here):
            environment = self._environment(local, starts)
            if isinstance(where, str):
                self._server.spawn(local, environment | {RENDEZVOUS: where}, [])
            else:
                self._server.spawn(local, environment, [where])

    def _environment(self, local: int, starts: int) -> dict[str, str]:
        return {
            **self.start.environment,
            "RANK": str(self.start.first + local),
            "WORLD_SIZE": str(self.start.size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.start.here),
            STARTS: str(starts),
        }

    @property
    def running(self) -> list[asyncio.Future[int]]:
        """One future for each process that runs; it is done when the process has ended."""
        return [rank for rank in self._server.ranks if not rank.done()]

    @property
    def codes(self) -> list[int]:
        """How those that have ended did so: an exit code, or minus the number of a signal."""
        return [rank.result() for rank in self._server.ranks if rank.done()]

    def terminate(self) -> None:
        """SIGTERM to all."""
        self._server.terminate()

    async def end(self) -> None:
        """SIGTERM, and after GRACE_SECONDS SIGKILL, to all and to what they have started."""
        if self.running:
            self.terminate()
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)
        await self._server.kill_ranks()
        if self.running:
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)
