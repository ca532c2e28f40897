"""The service's end of one reward model's process: starts it, asks it, restarts it when it dies.

Conversations in progress are sent once more to the new process. A conversation that kills both has
no score. A process that stops answering is killed.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time

import msgspec

from reward.frames import HEADER, pack
from reward.models.wire import Failed, Loaded, Message, ModelOptions, Question, Reply, Scored
from reward.verifiers.remote.reward_model import ModelError
from services.runtime.logs import get_logger
from services.runtime.threads import WAITING

log = get_logger(__name__)

STUCK = 50.0
"""A passed deadline kills the process if it has answered nothing for this time. Seconds."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before an ended process is restarted."""
HEALTHY = 2 * LONGEST_PAUSE
"""Seconds. After a life longer than this, an end has nothing to do with earlier ends."""


class ModelLoadError(Exception):
    """The model cannot be loaded. The message says why."""


class ModelLostError(ModelError):
    """The model's process ended before it answered."""


class ModelProcess:
    """The process of one reward model, and the conversations sent to it. Belongs to one event
    loop."""

    def __init__(self, name: str, options: ModelOptions) -> None:
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

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def loaded(self) -> bool:
        return self._loaded is not None and self._loaded.done()

    @property
    def loading(self) -> bool:
        """Tell whether the process is at its first load."""
        return self._process is not None and not self.loaded

    async def open(self) -> None:
        """Start the process, and wait until the model is loaded. Raises ModelLoadError."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(self._loaded))
        await asyncio.shield(self._loaded)
        log.info("reward model loaded", model=self.name, path=self.options.path)

    async def close(self) -> None:
        """End the process. Callers that still wait get ModelLostError."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    async def scores(self, messages: list[Message]) -> tuple[list[float], bool]:
        """Implements `RewardModel.scores` (`reward.verifiers.remote.reward_model`). Raises
        ModelError."""
        for attempt in (1, 2):
            # The process may have ended again meanwhile.
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
        """Start the process and read its replies until it ends. Return how it ended."""
        try:
            connection, process = self._start()
        except OSError as error:
            # Memory may be short, which may be why the last process ended.
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
            # The process was just killed. Its end takes a moment, or a few with gigabytes on a GPU.
            code = await asyncio.to_thread(process.wait)
        return problem or f"exit code {code}"

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            options = msgspec.json.encode(self.options).decode()
            process = subprocess.Popen(
                [sys.executable, "-m", "reward.models", str(theirs.fileno()), options],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                # Ctrl-C is for the service, which drains first.
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


def gpu_environment(gpu: str) -> dict[str, str]:
    """Return the environment that shows a process one GPU, by number or UUID. Return {} without a
    GPU."""
    # The driver numbers GPUs in bus order; CUDA by default starts with the fastest.
    return {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpu else {}


def next_pause(last: float, lived: float) -> float:
    """Return the seconds to wait before the next start. `last` is the pause before the process that
    has now ended (0 for the first); `lived` is how many seconds the process lived."""
    if not last or lived > HEALTHY:
        return FIRST_PAUSE
    return min(LONGEST_PAUSE, 2 * last)
