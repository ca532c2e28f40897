"""The rank processes on one host, and the server that starts them."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from headrace.death_signal import die_with
from learner.settings import STARTS
from learner.supervise.requests import MAX_BYTES, RankEnded, Report, Request, SpawnRank, Terminate
from services.runtime.children import signal_child
from services.runtime.logs import get_logger
from services.runtime.process import kill_marked
from services.runtime.threads import WAITING

log = get_logger(__name__)

GRACE_SECONDS = 10.0
"""Seconds from SIGTERM to SIGKILL for ranks that cannot continue because another rank has ended.
They have nothing to finish: only a step of all ranks counts."""
MARKER = "HEADRACE_RANKS_OF"
"""Environment variable of all ranks of one supervisor, and of their descendants."""
QUIET = {
    # NCCL would open a port that answers anyone, and write a file of pickles to /tmp.
    "NCCL_RAS_ENABLE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # setproctitle would overwrite the environment that holds the marker.
    "SPT_NOENV": "1",
}
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Names of torch's setting for GPU memory, in order of precedence."""
EXPANDABLE = {ALLOCATOR[-1]: "expandable_segments:True"}
"""With micro-batches of many sizes, expandable segments waste less memory. vLLM cannot use them: it
sleeps in a pool that must not grow."""


LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Ranks of one host are out of reach of other hosts."""


def rank_variables() -> dict[str, str]:
    """Return variables that a rank has from its start. Values that the user has set stay, except
    QUIET."""
    # The user may have set the allocator by another name.
    allocation = {} if any(name in os.environ for name in ALLOCATOR) else EXPANDABLE
    return WAITING | allocation | os.environ | QUIET


class RankProcesses:
    """The ranks on this host, and the process that starts them (`learner.supervise.rank_server`),
    which is replaced when it dies. It ends when the supervisor ends, in any way, and all ranks end
    with it."""

    def __init__(self, module: Sequence[str], count: int) -> None:
        """Each of `count` ranks runs `python -m MODULE`. The module must have a `main()`."""
        self._module, self._count = module, count
        self._marker = {MARKER: secrets.token_hex(16)}
        self._process: asyncio.subprocess.Process | None = None
        self._ready = self._ending = False
        self._ranks: dict[int, asyncio.Future[int]] = {}

    async def spawn(self, starts: int) -> None:
        """Start the ranks. They meet in a file without a name, which they inherit and nobody else
        can open. `starts`: number of earlier starts."""
        if self._process is None:
            await self._start_server()
        file = os.memfd_create("headrace-ranks")
        try:
            for rank in range(self._count):
                numbers = {"RANK": rank, "LOCAL_RANK": rank, STARTS: starts}
                sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), self._count)
                environment = {name: str(value) for name, value in (numbers | sizes).items()}
                self._ranks[rank] = asyncio.get_running_loop().create_future()
                self._send(SpawnRank(rank, environment | LOOPBACK), [file])
        finally:
            os.close(file)

    @property
    def running(self) -> list[asyncio.Future[int]]:
        """A future for each running rank. It is done when the rank has ended."""
        return [rank for rank in self._ranks.values() if not rank.done()]

    @property
    def codes(self) -> list[int]:
        """Exit codes of the ranks that have ended: minus the signal's number if a signal ended the
        rank."""
        return [rank.result() for rank in self._ranks.values() if rank.done()]

    def terminate(self) -> None:
        """Send SIGTERM to all ranks, or to the server if it is still importing."""
        if self._ready:
            self._send(Terminate())
        elif self._process is not None:
            # Once ready, the server ignores the signal, so the request is repeated when it reports
            # ready.
            self._ending = True
            signal_child(self._process, signal.SIGTERM)

    async def end(self) -> None:
        """Send SIGTERM to all ranks, and after GRACE_SECONDS SIGKILL to them and their descendants,
        but not to the server."""
        if self.running:
            self.terminate()
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)
        spared = [self._process.pid] if self._process is not None else []
        _, alive = await asyncio.to_thread(kill_marked, self._marker, spared=spared)
        if alive:
            log.error("processes survived SIGKILL", pids=alive)
        if self.running:
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)

    async def close(self) -> None:
        """End the server. Call it after all ranks have ended."""
        if self._process is not None:
            signal_child(self._process, signal.SIGKILL)
            await self._watch

    async def _start_server(self) -> None:
        """Start the server. It imports for seconds, and accepts requests meanwhile."""
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with control:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "learner.supervise.rank_server", str(control.fileno())),
                *self._module,
                env=rank_variables() | self._marker,
                pass_fds=[control.fileno()],
                # Ctrl-C is for the supervisor.
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        self._ready = self._ending = False
        self._watch = asyncio.create_task(self._listen(self._process))

    def _send(self, request: Request, files: Sequence[int] = ()) -> None:
        # If the server has died, `_listen` notices.
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], files)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Receive the server's reports until it ends."""
        loop, decoder = asyncio.get_running_loop(), msgspec.msgpack.Decoder(Report)
        with self._control, contextlib.suppress(ConnectionError):
            while message := await loop.sock_recv(self._control, MAX_BYTES):
                report = decoder.decode(message)
                if isinstance(report, RankEnded):
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
