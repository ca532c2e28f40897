"""The service's end of one reward model's process: start it, ask it, start it again when it dies.

Conversations in progress when it died are sent once more to its successor. A conversation that
kills both has no score. A process that stops answering is killed.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from reward.frames import HEADER, pack
from reward.models.wire import Failed, Loaded, Message, Options, Question, Reply, Scored
from reward.verifiers.model import ModelError
from services.runtime.logs import get_logger
from services.runtime.threads import WAITING

log = get_logger(__name__)

QUIET = 60.0
"""Seconds in which a process that loads its model does nothing, after which it counts as stuck."""
STUCK = 50.0
"""Seconds without any answer after which a deadline that passes has the process killed."""


FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a process that ended is started once more."""
HEALTHY = 2 * LONGEST_PAUSE
"""Seconds. The end of a process that lived longer has nothing to do with earlier ends."""


class ModelLoadError(Exception):
    """The model cannot be loaded: the message says why."""


class ModelLostError(ModelError):
    """Its process ended before it answered."""


class ModelProcess:
    """See the module. Belongs to one event loop."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.labels = 0
        self._replies = msgspec.msgpack.Decoder(Reply)
        self._tickets = itertools.count()
        self._asked: dict[int, asyncio.Future[Scored]] = {}
        self._up = asyncio.Event()
        self._loaded: asyncio.Future[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._progress = 0.0
        self._work: tuple[int, int] | None = None
        self._worked_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def loaded(self) -> bool:
        """Whether it has been loaded once."""
        return self._loaded is not None and self._loaded.done()

    @property
    def loading(self) -> bool:
        """Whether its process is at work on loading the model for the first time. Look at it at
        least every QUIET seconds: what the process has done since the last look decides."""
        process = self._process
        if process is None or self.loaded:
            return False
        now, work = time.monotonic(), _work_of(process.pid)
        if work != self._work:
            self._work, self._worked_at = work, now
        return now - self._worked_at <= QUIET

    async def open(self) -> None:
        """Start it; returns when the model is loaded. Raises ModelLoadError."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(self._loaded))
        await asyncio.shield(self._loaded)
        log.info("reward model loaded", model=self.name, path=self.options.path)

    async def close(self) -> None:
        """End it. Whoever still waits gets ModelLostError."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    async def scores(self, messages: list[Message]) -> tuple[list[float], bool]:
        """See reward.verifiers.model.RewardModel.scores. Raises ModelError."""
        for attempt in (1, 2):
            # It may have ended again since it was up.
            while not self._up.is_set():
                await self._up.wait()
            try:
                scored = await self._ask(messages)
            except ModelLostError:
                if attempt == 2:
                    raise
                continue
            if scored.problem:
                raise ModelError(scored.problem)
            return scored.scores, scored.truncated
        raise AssertionError("unreachable")

    async def _ask(self, messages: list[Message]) -> Scored:
        assert self._writer is not None
        ticket = next(self._tickets)
        answer: asyncio.Future[Scored] = asyncio.get_running_loop().create_future()
        if not self._asked:
            self._progress = time.monotonic()
        self._asked[ticket] = answer
        self._writer.write(pack(Question(ticket, messages)))
        try:
            return await answer
        except asyncio.CancelledError:
            if time.monotonic() - self._progress > STUCK and self._process is not None:
                log.error("reward model does not answer: killing it", model=self.name)
                self._process.kill()
            raise
        finally:
            self._asked.pop(ticket, None)

    async def _keep(self, loaded: asyncio.Future[None]) -> None:
        """Have a process running, until cancelled."""
        pause = 0.0
        while True:
            began = time.monotonic()
            problem = await self._run_once(loaded)
            if not loaded.done():
                loaded.set_exception(ModelLoadError(f"reward model {self.name!r}: {problem}"))
                return
            log.error("reward model ended; starting it again", model=self.name, problem=problem)
            pause = next_pause(pause, time.monotonic() - began)
            await asyncio.sleep(pause)

    async def _run_once(self, loaded: asyncio.Future[None]) -> str:
        """Start it and read its replies until it ends. Returns how it ended."""
        try:
            connection, process = self._start()
        except OSError as error:
            # Memory may be short: that may be why the last one ended.
            return f"it cannot be started: {error}"
        self._process = process
        problem = ""
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=connection)
            problem = await self._read(reader, loaded)
        finally:
            self._up.clear()
            self._process = None
            process.kill()
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            lost = ModelLostError(f"the process of reward model {self.name!r} ended")
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(lost)
            self._asked.clear()
            # Killed just now: it ends in a moment, or, with gigabytes on a GPU, in a few.
            code = await asyncio.to_thread(process.wait)
        return problem or f"exit code {code}"

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            options = msgspec.json.encode(self.options).decode()
            process = subprocess.Popen(
                [sys.executable, "-m", "reward.models", str(theirs.fileno()), options],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                # Ctrl-C is for the service: it drains first.
                start_new_session=True,
                env={**WAITING, **os.environ, **gpu_environment(self.options.gpu)},
            )
            failed.pop_all()
        ours.setblocking(False)
        return ours, process

    async def _read(self, reader: asyncio.StreamReader, loaded: asyncio.Future[None]) -> str:
        while True:
            try:
                size = int.from_bytes(await reader.readexactly(HEADER), "little")
                reply = self._replies.decode(await reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                return ""
            match reply:
                case Loaded(labels):
                    self.labels = labels
                    self._up.set()
                    if not loaded.done():
                        loaded.set_result(None)
                case Failed(problem):
                    return problem
                case Scored():
                    self._progress = time.monotonic()
                    answer = self._asked.get(reply.ticket)
                    if answer is not None and not answer.done():
                        answer.set_result(reply)


def _work_of(pid: int) -> tuple[int, int] | None:
    """Ticks of CPU time and bytes read from disks of a process so far, by proc(5); None: it has
    ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        io = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system), int(io.partition("\nread_bytes: ")[2].split()[0])


def gpu_environment(gpu: str) -> dict[str, str]:
    """The environment that shows one GPU to a process, by number or UUID; {} for no GPU."""
    # The driver numbers GPUs in the order of the bus; CUDA by default starts with the fastest.
    return {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpu else {}


def next_pause(last: float, lived: float) -> float:
    """Seconds to wait before the next start. `last`: how long it was before the process that has
    ended now, 0 before the first; `lived`: its seconds."""
    if not last or lived > HEALTHY:
        return FIRST_PAUSE
    return min(LONGEST_PAUSE, 2 * last)
