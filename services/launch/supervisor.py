"""Keeps the parts of an installation running, and ends them in order.

Never leaves a process behind: each is started with a parent-death signal, in a session of its own,
under a marker that all its descendants inherit; whatever carries the marker after a part has ended
is killed. Everything is forked by the event loop's thread, because the death signal follows the
*thread*.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.launch.options import LaunchError
from services.launch.part import LogFile, Part, Status
from services.logs import get_logger
from services.process import PART, RESTARTS, SUPERVISOR, die_with, kill_marked

log = get_logger(__name__)

STABLE_AFTER = 60.0
"""Seconds of life after which an earlier death no longer counts."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
PROBE_EVERY = 0.2
ROTATE_EVERY = 30.0


def pause_before_restart(deaths: int) -> float:
    """Seconds to wait after `deaths` (at least 1) in a row: 0.5, 1, 2, … up to 30."""
    return float(min(FIRST_PAUSE * 2 ** (deaths - 1), LONGEST_PAUSE))


def how_it_ended(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


class Supervisor:
    """The process tree of one `headrace up`. Used from one event loop, once."""

    def __init__(
        self,
        parts: Sequence[Part],
        marker: Mapping[str, str],
        logs: Path,
        *,
        grace: float = 20.0,
        restart_limit: int = 5,
        record: Callable[[Mapping[str, int]], None] = lambda pids: None,
        watch: Callable[[Status], None] = lambda status: None,
    ) -> None:
        """`marker`: environment that names this instance. `record` is told the pids after each
        start, `watch` each change of a part."""
        self.parts = {part.name: part for part in parts}
        self.status = {part.name: Status(part.name) for part in parts}
        self.logs = {part.name: LogFile(logs / f"{part.name}.log") for part in parts}
        self._folder = logs
        self._marker = dict(marker)
        self._grace = grace
        self._restart_limit = restart_limit
        self._record = record
        self._watch = watch
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ready = {part.name: asyncio.Event() for part in parts}
        self._stopping = False
        self._leaving = {part.name: asyncio.Event() for part in parts}
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rotation: asyncio.Task[None] | None = None

    @property
    def pids(self) -> dict[str, int]:
        """The processes started here that run now, by part."""
        return {name: one.pid for name, one in self._processes.items() if one.returncode is None}

    async def start(self) -> None:
        """Start all parts, stage 0 first; return when all are ready. LaunchError if one fails."""
        self._rotation = asyncio.create_task(self._rotate())
        first = [name for name, part in self.parts.items() if part.stage == 0]
        rest = [name for name, part in self.parts.items() if part.stage != 0]
        for names in (first, rest):
            for name in names:
                self._begin(self.parts[name])
            await self._until_ready(names)

    def add(self, part: Part) -> None:
        """Start one more part, of the last stage, and keep it running; returns at once. Raises
        LaunchError where everything is being stopped."""
        if self._stopping:
            raise LaunchError("everything is being stopped: nothing new is started")
        self.parts[part.name] = part
        self.status[part.name] = Status(part.name)
        self.logs[part.name] = LogFile(self._folder / f"{part.name}.log")
        self._ready[part.name] = asyncio.Event()
        self._leaving[part.name] = asyncio.Event()
        self._begin(part)

    async def remove(self, name: str) -> None:
        """End one part for good: SIGTERM, SIGKILL after the grace period."""
        part = self.parts[name]
        self._leaving[name].set()
        await self._end(part)
        for table in (self.parts, self.status, self.logs, self._ready, self._leaving):
            table.pop(name, None)
        self._processes.pop(name, None)
        self._tasks.pop(name, None)
        self._record(self.pids)

    def _begin(self, part: Part) -> None:
        task = asyncio.create_task(self._keep(part), name=f"keep {part.name}")
        task.add_done_callback(self._kept)
        self._tasks[part.name] = task

    async def _until_ready(self, names: Sequence[str]) -> None:
        ready: asyncio.Future[Any] = asyncio.ensure_future(self._all_ready(names))
        failure: asyncio.Future[Any] = asyncio.ensure_future(self.failed())
        try:
            await asyncio.wait({ready, failure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            failure.cancel()
        if self._failure.done():
            raise LaunchError(self._failure.result())

    async def _all_ready(self, names: Sequence[str]) -> None:
        # Not gather: one that is cancelled and never awaited is reported as a lost exception.
        for name in names:
            await self._ready[name].wait()

    async def failed(self) -> str:
        """Wait until a part has been given up, and say which and why."""
        return await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """End everything: workers first, Redis last; SIGTERM, SIGKILL after the grace period."""
        self._stop_restarting()
        for stage in sorted({part.stage for part in self.parts.values()}, reverse=True):
            ending = [part for part in list(self.parts.values()) if part.stage == stage]
            await asyncio.gather(*(self._end(part) for part in ending))
        if self._rotation is not None:
            self._rotation.cancel()
        await self.kill()
        self._record({})

    async def kill(self) -> None:
        """SIGKILL to everything of this instance, at once, and start nothing again."""
        self._stop_restarting()
        _, alive = await asyncio.to_thread(kill_marked, self._marker)
        if alive:
            log.error("processes survived SIGKILL", pids=alive)

    def _stop_restarting(self) -> None:
        self._stopping = True
        for leaving in self._leaving.values():
            leaving.set()

    async def _keep(self, part: Part) -> None:
        """Start `part` again and again until it is told to stop or dies too often."""
        clock = asyncio.get_running_loop().time
        leaving = self._leaving[part.name]
        deaths = 0
        while not leaving.is_set():
            began = clock()
            try:
                process = await self._spawn(part)
            except OSError as error:
                self._give_up(part, f"cannot be started: {error}")
                return
            code = await self._attend(part, process)
            if leaving.is_set() or code is None:
                return
            await asyncio.to_thread(kill_marked, self._of(part))
            deaths = 1 if clock() - began >= STABLE_AFTER else deaths + 1
            ended = how_it_ended(code)
            if deaths >= self._restart_limit:
                self._give_up(part, f"{ended}, for the {deaths}. time in a row")
                return
            pause = pause_before_restart(deaths)
            log.warning("part died", part=part.name, how=ended, restart_in_s=pause)
            restarts = self.status[part.name].restarts + 1
            self._change(part, state="restarting", pid=None, restarts=restarts, detail=ended)
            await _settled(leaving.wait(), pause)

    async def _spawn(self, part: Part) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            **part.environment,
            **self._of(part),
            SUPERVISOR: str(os.getpid()),
            RESTARTS: str(self.status[part.name].restarts),
            # setproctitle (vLLM uses it) would overwrite the environment the marker is read from.
            "SPT_NOENV": "1",
            "PYTHONUNBUFFERED": "1",
            # A folder called `services` or `learner` where the user stands must not be imported.
            "PYTHONSAFEPATH": "1",
        }
        output = self.logs[part.name].open(part.argv)
        try:
            process = await asyncio.create_subprocess_exec(
                *part.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        finally:
            os.close(output)
        self._processes[part.name] = process
        self._record(self.pids)
        self._change(part, state="starting", pid=process.pid, detail="")
        if self._leaving[part.name].is_set():
            _terminate(process)
        return process

    async def _attend(self, part: Part, process: asyncio.subprocess.Process) -> int | None:
        """Until `process` has ended: its exit status; None if the part was given up."""
        clock, leaving = asyncio.get_running_loop().time, self._leaving[part.name]
        deadline = clock() + part.ready_within
        ended = asyncio.ensure_future(process.wait())
        reason = await part.not_ready() if part.not_ready else None
        while reason is not None and not ended.done() and not leaving.is_set():
            if clock() > deadline:
                self._give_up(part, f"{reason}, {part.ready_within:g} s after its start")
                return None
            self._change(part, detail=reason)
            await _settled(asyncio.shield(ended), PROBE_EVERY)
            reason = await part.not_ready() if part.not_ready else None
        if reason is None and process.returncode is None and not leaving.is_set():
            self._change(part, state="ready", detail="")
            self._ready[part.name].set()
        return await ended

    async def _end(self, part: Part) -> None:
        task = self._tasks.get(part.name)
        if task is None:
            return
        failed = self.status[part.name].state == "failed"
        if not failed:
            self._change(part, state="stopping", detail="")
        process = self._processes.get(part.name)
        if process is not None:
            _terminate(process)
            await _settled(process.wait(), self._grace)
            if process.returncode is None:
                log.warning("part did not stop in time, killing it", part=part.name)
                process.kill()
        await asyncio.to_thread(kill_marked, self._of(part))
        await asyncio.wait({task}, timeout=PROBE_EVERY + 10)
        if not failed:
            self._change(part, state="stopped", pid=None, detail="")

    def _of(self, part: Part) -> dict[str, str]:
        return {**self._marker, PART: part.name}

    def _give_up(self, part: Part, why: str) -> None:
        self._change(part, state="failed", pid=None, detail=why)
        if not self._failure.done():
            file = self.logs[part.name]
            self._failure.set_result(
                f"{part.name} {why}. The last lines of {file.path}:\n{file.tail()}"
            )

    def _kept(self, task: asyncio.Task[None]) -> None:
        """A defect here must not look like a part that runs on unwatched."""
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    def _change(self, part: Part, **changes: Any) -> None:
        before = self.status[part.name]
        after = replace(before, **changes)
        if after != before:
            self.status[part.name] = after
            self._watch(after)

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(ROTATE_EVERY)
            for file in list(self.logs.values()):
                await asyncio.to_thread(file.rotate)


def _terminate(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.terminate()
        except ProcessLookupError:
            return


async def _settled(awaitable: Any, within: float) -> None:
    """Wait for `awaitable`, but no longer than `within` seconds."""
    try:
        await asyncio.wait_for(awaitable, within)
    except TimeoutError:
        return
