"""Keeps the parts of an installation running, and ends them in order.

Never leaves a process behind: each is started with a parent-death signal, in a session of its own,
under a marker that all its descendants inherit; whatever carries the marker after a part has ended
is killed. Everything is forked by the event loop's thread, because the death signal follows the
*thread*.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from services.launch.options import LaunchError
from services.launch.part import LogFile, Part, Status
from services.launch.supervised_part import Rules, SupervisedPart
from services.runtime.logs import get_logger
from services.runtime.process import kill_marked

log = get_logger(__name__)

ROTATE_EVERY = 30.0


class Supervisor:
    """Starts, watches and ends the parts of one `headrace up`. Used once, from one event loop."""

    def __init__(
        self,
        parts: Sequence[Part],
        logs: Path,
        rules: Rules,
    ) -> None:
        self._logs = logs
        self._rules = rules
        self._parts = {part.name: self._supervised(part) for part in parts}
        self._added: set[str] = set()
        self.failures: dict[str, str] = {}
        """Why parts were given up, by name."""
        self._stopping = False
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rotation: asyncio.Task[None] | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The parts that should run, by name."""
        return {name: supervised.part for name, supervised in self._parts.items()}

    @property
    def status(self) -> dict[str, Status]:
        """The current state of each part."""
        return {name: supervised.status for name, supervised in self._parts.items()}

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the running processes, by part."""
        pids = ((name, supervised.pid) for name, supervised in self._parts.items())
        return {name: pid for name, pid in pids if pid is not None}

    async def start(self) -> None:
        """Start all parts, stage 0 first. Return when all are ready. Raises LaunchError if one
        fails."""
        self._rotation = asyncio.create_task(self._rotate())
        parts = list(self._parts.values())
        first = [supervised for supervised in parts if supervised.part.stage == 0]
        others = [supervised for supervised in parts if supervised.part.stage != 0]
        for stage in (first, others):
            for supervised in stage:
                self._begin(supervised)
            await self._until_ready(stage)

    def add(self, part: Part) -> None:
        """Start one more part of the last stage. Returns at once. If the part has to be given up,
        the others go on, and `failures` has the reason. Raises LaunchError during the stop."""
        if self._stopping:
            raise LaunchError("everything is being stopped: nothing new is started")
        self._added.add(part.name)
        self.failures.pop(part.name, None)
        self._parts[part.name] = self._supervised(part)
        self._begin(self._parts[part.name])

    async def remove(self, name: str) -> None:
        """End one part for good, with SIGTERM, and with SIGKILL after the grace period."""
        part = self._parts[name]
        part.leaving.set()
        await part.end()
        self._parts.pop(name, None)

    @property
    def failure(self) -> str | None:
        """The name of the part that was given up and the reason, or None."""
        done = self._failure.done() and self._failure.exception() is None
        return self._failure.result() if done else None

    async def failed(self) -> None:
        """Wait until a part is given up. Raise LaunchError with its name and the reason."""
        raise LaunchError(await asyncio.shield(self._failure))

    async def stop(self) -> None:
        """End all parts, workers first and Redis last: with SIGTERM, and with SIGKILL after the
        grace period."""
        self._stop_restarting()
        parts = list(self._parts.values())
        for stage in sorted({supervised.part.stage for supervised in parts}, reverse=True):
            ending = [supervised.end() for supervised in parts if supervised.part.stage == stage]
            await asyncio.gather(*ending)
        if self._rotation is not None:
            self._rotation.cancel()
        await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL to all processes of this instance at once, and start nothing again."""
        self._stop_restarting()
        _, alive = await asyncio.to_thread(kill_marked, self._rules.marker)
        if alive:
            log.error("processes survived SIGKILL", pids=alive)

    def _supervised(self, part: Part) -> SupervisedPart:
        return SupervisedPart(part, LogFile(self._logs / f"{part.name}.log"), self._rules)

    def _begin(self, part: SupervisedPart) -> None:
        name = part.part.name
        part.begin().add_done_callback(lambda task: self._ended(name, task))

    async def _until_ready(self, parts: Sequence[SupervisedPart]) -> None:
        failure = asyncio.ensure_future(self.failed())
        try:
            for supervised in parts:
                ready = asyncio.ensure_future(supervised.ready.wait())
                await asyncio.wait({ready, failure}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
                if failure.done():
                    failure.result()
        finally:
            failure.cancel()

    def _stop_restarting(self) -> None:
        self._stopping = True
        for part in self._parts.values():
            part.leaving.set()

    def _ended(self, name: str, task: asyncio.Task[str | None]) -> None:
        if task.cancelled() or self._failure.done():
            return
        # A defect in the supervision must not look like a part that runs on.
        if (error := task.exception()) is not None:
            self._failure.set_exception(error)
        elif (why := task.result()) is not None:
            self.failures[name] = why
            if name in self._added:
                log.error("a part that was added is given up", part=name, reason=why)
            else:
                self._failure.set_result(why)

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_EVERY)
            for part in list(self._parts.values()):
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(part.file.rotate)
