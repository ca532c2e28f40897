"""Lines that processes have logged: a bounded stream for each run, and one for the installation.

A line of a learner or worker that names no run belongs to the active run of its pool. So the log of
a run has the words of each process that worked on it. All other lines are the installation's, and
so are lines about a run that is deleted.
"""

from collections.abc import Sequence

import msgspec

from services.contracts.logs import Level, LogLine, WrittenLine
from services.store.keys import LOGS, LOGS_LEASE, LOGS_PLACE, pool_key, run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text

KEPT_OF_RUN = 5_000
KEPT = 10_000
"""Lines of the installation."""
KEPT_SECONDS = 7 * 86_400
"""A run's lines are deleted this long after its last line."""


class _Entry(msgspec.Struct, omit_defaults=True):
    """A line as Redis keeps it. Short names: each line has them."""

    t: float
    p: str
    h: str
    x: str
    l: Level = "info"  # noqa: E741
    r: str | None = None


class ProcessLogs(StorePart):
    """Calls about logs: every process appends, the gateway reads."""

    async def add(self, lines: Sequence[WrittenLine], pool: str | None = None) -> None:
        """Append lines. `pool`: the pool of their process, if it has one."""
        active = None
        if pool is not None and not all(line.run for line in lines):
            active = await self._redis.get(pool_key(pool, "active"))
        of_runs: dict[str | None, list[WrittenLine]] = {}
        for line in lines:
            of_runs.setdefault(line.run or (as_text(active) if active else None), []).append(line)
        runs = [run for run in of_runs if run]
        pipe = self._redis.pipeline(transaction=False)
        for run in runs:
            pipe.exists(run_key(run, "run"))
        for run, is_there in zip(runs, await pipe.execute(), strict=True):
            # Otherwise the log of a deleted run would begin again.
            if not is_there:
                of_runs.setdefault(None, []).extend(of_runs.pop(run))
        pipe = self._redis.pipeline(transaction=False)
        for named, written in of_runs.items():
            key, kept = log_key(named), KEPT_OF_RUN if named else KEPT
            for line in written:
                entry = _Entry(line.time, line.process, line.host, line.text, line.level, line.run)
                pipe.xadd(key, {"l": msgspec.json.encode(entry)}, maxlen=kept, approximate=True)
            if named:
                pipe.expire(key, KEPT_SECONDS)
        await pipe.execute()

    async def after(self, run: str | None, id: str, count: int) -> list[LogLine]:
        """Return up to `count` lines behind the line `id` ("0": from the first), oldest first.
        `run`: None for the installation."""
        entries = await self._redis.xrange(log_key(run), min=f"({id}", count=count)
        return [_parsed(entry, fields) for entry, fields in entries]

    async def before(self, run: str | None, id: str, count: int) -> list[LogLine]:
        """Return up to `count` lines before the line `id` ("+": from the last), newest first."""
        end = id if id == "+" else f"({id}"
        entries = await self._redis.xrevrange(log_key(run), max=end, count=count)
        return [_parsed(entry, fields) for entry, fields in entries]

    async def reward_place(self, holder: str, seconds: float) -> tuple[str, int] | None:
        """Take or prolong the lease on the reward service's log. Return the start and the number of
        the line that comes next. Return None if another gateway has the lease."""
        milliseconds = int(seconds * 1000)
        if not await self._redis.set(LOGS_LEASE, holder, nx=True, px=milliseconds):
            if as_text(await self._redis.get(LOGS_LEASE) or b"") != holder:
                return None
            await self._redis.pexpire(LOGS_LEASE, milliseconds)
        start, _, number = as_text(await self._redis.get(LOGS_PLACE) or b"").partition(" ")
        return start, int(number) if number.isdecimal() else 0

    async def keep_reward_place(self, start: str, number: int) -> None:
        """Remember which line of the reward service comes next."""
        await self._redis.set(LOGS_PLACE, f"{start} {number}")


def log_key(run: str | None) -> str:
    """Return the key of the log of a run, or of the installation."""
    return run_key(run, "log") if run else LOGS


def _parsed(id: bytes, fields: dict[bytes, bytes]) -> LogLine:
    """Parse an entry. An unreadable one becomes a line that says so."""
    name = as_text(id)
    try:
        entry = msgspec.json.decode(fields[b"l"], type=_Entry)
    except (KeyError, ValueError) as error:
        at = int(name.partition("-")[0]) / 1000
        text = f"this line in Redis is unreadable: {error}"
        return LogLine(id=name, time=at, process="redis", host="", level="warning", text=text)
    # Not validated again: a page has hundreds of lines.
    return LogLine.model_construct(
        id=name,
        time=entry.t,
        process=entry.p,
        host=entry.h,
        level=entry.l,
        text=entry.x,
        run=entry.r,
    )
