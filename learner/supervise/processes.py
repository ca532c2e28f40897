"""The processes of one start on one host."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Sequence

from learner.settings import RENDEZVOUS, STARTS
from learner.supervise.nodes import Start
from services.runtime.logs import get_logger
from services.runtime.process import die_with, kill_marked
from services.runtime.threads import WAITING

log = get_logger(__name__)

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL, for ranks that cannot go on because another has ended. They have nothing
to finish: only a step of all ranks counts."""
MARKER = "HEADRACE_RANKS_OF"
"""In the environment of all ranks that one start has on this host, and of their descendants."""
QUIET = {
    # A port on which NCCL answers whoever asks, and a file of pickles in /tmp.
    "NCCL_RAS_ENABLE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # setproctitle would overwrite the environment that the marker is read from.
    "SPT_NOENV": "1",
}


class RankProcesses:
    """The ranks of one start on this host. They end with the supervisor, however it ends."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self._marker = {MARKER: secrets.token_hex(16)}
        self._waits: list[asyncio.Task[int]] = []
        self._processes: list[asyncio.subprocess.Process] = []

    async def spawn(self, module: Sequence[str], starts: int) -> None:
        """Start them: `python -m MODULE`. `starts`: how often ranks have been started before."""
        for local in range(self.start.here):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module),
                env=WAITING | os.environ | QUIET | self._marker | self._environment(local, starts),
                pass_fds=self.start.files,
                # Ctrl-C is for the supervisor.
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
            self._processes.append(process)
            self._waits.append(asyncio.create_task(process.wait()))

    def _environment(self, local: int, starts: int) -> dict[str, str]:
        return {
            **self.start.environment,
            "RANK": str(self.start.first + local),
            "WORLD_SIZE": str(self.start.size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.start.here),
            RENDEZVOUS: self.start.rendezvous,
            STARTS: str(starts),
        }

    @property
    def running(self) -> list[asyncio.Task[int]]:
        """One task for each process that runs; it ends with the process."""
        return [task for task in self._waits if not task.done()]

    @property
    def codes(self) -> list[int]:
        """How those that have ended did so: an exit code, or minus the number of a signal."""
        return [task.result() for task in self._waits if task.done()]

    def terminate(self) -> None:
        """SIGTERM to all."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    async def end(self) -> None:
        """SIGTERM, and after GRACE_SECONDS SIGKILL, to all and to what they have started."""
        self.terminate()
        if self.running:
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)
        _, alive = await asyncio.to_thread(kill_marked, self._marker)
        if alive:
            log.error("processes survived SIGKILL", pids=alive)
        if self.running:
            await asyncio.wait(self.running, timeout=GRACE_SECONDS)
