"""Starts one part of an installation, starts it again when it dies, and ends it on request."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.death_signal import die_with
from services.launch.part import Loading, LogFile, Part, Status
from services.runtime.children import signal_child
from services.runtime.logs import get_logger
from services.runtime.process import PART, PRIVATE, RESTARTS, SUPERVISOR, kill_marked
from services.settings import EXIT_SETTINGS

log = get_logger(__name__)

STABLE_AFTER = 60.0
"""Seconds of life after which earlier deaths no longer count, and a part without a readiness check
counts as one that has been ready."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
PROBE_EVERY = 0.2
HELD_BACK_EVERY = 1.0


def pause_before_restart(deaths: int) -> float:
    """Return the seconds to wait after `deaths` (at least 1) in a row: 0.5, 1, 2, … up to 30."""
    return float(min(FIRST_PAUSE * 2 ** (deaths - 1), LONGEST_PAUSE))


def how_it_ended(code: int) -> str:
    """Describe an exit status in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that all parts of one installation share."""

    marker: Mapping[str, str]
    """The environment that names this instance."""
    grace: float
    """Seconds from SIGTERM to SIGKILL."""
    start_tries: int
    """Deaths in a row after which a part that was never ready is given up."""
    watch: Callable[[Status], None]
    """Called with each change of a part."""


class GivenUp(Exception):
    """A part is not started again. The message says why, in words that follow its name."""


class FailedStart(Exception):
    """A process failed to start, or became ready too late. The message says why, in words that
    follow its part's name."""


class SupervisedPart:
    """Starts one part's process, and starts it again when it ends. Used from one event loop."""

    def __init__(self, part: Part, file: LogFile, rules: Rules) -> None:
        self.part = part
        self.status = Status(part.name)
        self.ready = asyncio.Event()
        self.leaving = asyncio.Event()
        """Set when the part is to end: its process is not started again."""
        self.file = file
        self.task: asyncio.Task[str | None] | None = None
        """Keeps the part running. Its result is the reason why the part was given up, or None."""
        self._rules = rules
        self._marker = {**rules.marker, PART: part.name}
        self._process: asyncio.subprocess.Process | None = None
        self._was_ready = False

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def begin(self) -> asyncio.Task[str | None]:
        """Start the part, and keep it running. Returns at once."""
        self.task = asyncio.create_task(self._supervise(), name=f"supervise {self.part.name}")
        return self.task

    async def end(self) -> None:
        """End the process with SIGTERM, and with SIGKILL after the grace period. `leaving` must be
        set."""
        if self.task is None:
            return
        failed = self.status.state == "failed"
        if not failed:
            self._change(state="stopping", detail="")
        process = self._process
        if process is not None:
            self._terminate()
            await _at_most(self._rules.grace, process.wait())
            if process.returncode is None:
                log.warning("part did not stop in time, killing it", part=self.part.name)
                signal_child(process, signal.SIGKILL)
        await asyncio.to_thread(kill_marked, self._marker)
        await asyncio.wait({self.task}, timeout=PROBE_EVERY + 10)
        if not failed:
            self._change(state="stopped", pid=None, detail="")

    async def _supervise(self) -> str | None:
        try:
            await self._restart_until_told_to_leave()
        except GivenUp as error:
            # One that is not ready in time still runs.
            await asyncio.to_thread(kill_marked, self._marker)
            if cause := self.file.error():
                self._change(state="failed", pid=None, detail=cause.partition("\n")[0])
                return f"{self.part.name} cannot start: {cause}\nIts log: {self.file.path}"
            self._change(state="failed", pid=None, detail=str(error))
            last = f"The last lines of {self.file.path}:\n{self.file.tail()}"
            return f"{self.part.name} {error}. {last}"
        return None

    async def _restart_until_told_to_leave(self) -> None:
        """Run the part again and again until it is to leave. Raises GivenUp for a part that was
        never ready: at once if its settings are wrong or its last words are final, since the next
        start would end alike, else after some tries."""
        clock = asyncio.get_running_loop().time
        deaths = 0
        while not self.leaving.is_set():
            if self.part.held_back and (reason := self.part.held_back()):
                self._change(state="waiting", pid=None, detail=reason)
                await _at_most(HELD_BACK_EVERY, self.leaving.wait())
                continue
            began = clock()
            try:
                code = await self._run()
                ended = how_it_ended(code)
            except FailedStart as error:
                # One that was ready before is as good as dead: what it lacks may come back.
                if not self._was_ready:
                    raise GivenUp(str(error)) from None
                code, ended = None, str(error)
            if self.leaving.is_set():
                return
            await asyncio.to_thread(kill_marked, self._marker)
            lasted = clock() - began >= STABLE_AFTER
            deaths = 1 if lasted else deaths + 1
            self._was_ready |= lasted
            if not self._was_ready and (code == EXIT_SETTINGS or self._is_final()):
                raise GivenUp(f"{ended}, which the next start would not change")
            if not self._was_ready and deaths >= self._rules.start_tries:
                raise GivenUp(f"{ended} at each of its {deaths} starts")
            pause = pause_before_restart(deaths)
            log.warning("part died", part=self.part.name, how=ended, restart_in_s=pause)
            restarts = self.status.restarts + 1
            self._change(state="restarting", pid=None, restarts=restarts, detail=ended)
            await _at_most(pause, self.leaving.wait())

    def _is_final(self) -> bool:
        return self.part.is_final is not None and self.part.is_final(self.file.tail())

    async def _run(self) -> int:
        """Run one process from start to end. Return its exit status. Raises FailedStart."""
        try:
            self._process = process = await self._spawn()
        except OSError as error:
            raise FailedStart(f"cannot be started: {error}") from None
        self._change(state="starting", pid=process.pid, detail="")
        if self.leaving.is_set():
            self._terminate()
        clock, not_ready = asyncio.get_running_loop().time, self.part.not_ready
        deadline, since = clock() + self.part.ready_within, "its start"
        ended = asyncio.ensure_future(process.wait())
        reason = await not_ready() if not_ready else None
        while reason is not None and not ended.done() and not self.leaving.is_set():
            if isinstance(reason, Loading):
                deadline, since = clock() + self.part.ready_within, "it last said that it loads"
            elif clock() > deadline:
                raise FailedStart(f"{reason}, {self.part.ready_within:g} s after {since}")
            self._change(detail=reason)
            await _at_most(PROBE_EVERY, asyncio.shield(ended))
            reason = await not_ready() if not_ready else None
        if reason is None and process.returncode is None and not self.leaving.is_set():
            self._change(state="ready" if not_ready else "running", detail="")
            self.ready.set()
            self._was_ready |= not_ready is not None
        return await ended

    async def _spawn(self) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            **self.part.environment,
            **self._marker,
            SUPERVISOR: str(os.getpid()),
            RESTARTS: str(self.status.restarts),
            # setproctitle (vLLM uses it) would overwrite the environment the marker is read from.
            "SPT_NOENV": "1",
            "PYTHONUNBUFFERED": "1",
            # A folder called `services` or `learner` where the user stands must not be imported.
            "PYTHONSAFEPATH": "1",
        }
        output = self.file.open(self.part.argv)
        try:
            return await asyncio.create_subprocess_exec(
                *self.part.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                umask=PRIVATE,
                preexec_fn=die_with(os.getpid()),
            )
        finally:
            os.close(output)

    def _terminate(self) -> None:
        if self._process is not None:
            signal_child(self._process, signal.SIGTERM)

    def _change(self, **changes: Any) -> None:
        before = self.status
        self.status = replace(before, **changes)
        if self.status != before:
            self._rules.watch(self.status)


async def _at_most(seconds: float, awaitable: Any) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(awaitable, seconds)
