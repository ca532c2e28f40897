"""Pages of logs: of a run, with the warnings of the gateways and the reward service during it, or
of the installation. Both streams have ids by the same clock, so one id is a place in both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.contracts.logs import LEVELS, Level, LogLine, is_of
from services.contracts.records import RunRecord
from services.store import Store

PIECE = 500
SHARED = ("gateway", "reward")
"""Processes that serve all runs. Their warnings and errors may concern any run."""
AFTERWARDS = 10.0
"""Seconds after a run's end whose lines of shared processes still belong to it."""

Wanted = Callable[[LogLine], bool]


@dataclass(frozen=True)
class LogSource:
    """A stream, or the part between two of its ids, without both."""

    run: str | None
    first: str = "0"
    last: str = "+"
    shared_only: bool = False

    def has(self, line: LogLine) -> bool:
        """Whether a line of the stream belongs to this part."""
        if not self.shared_only:
            return True
        is_loud = line.level in ("warning", "error")
        is_before_end = self.last == "+" or order(line.id) < order(self.last)
        return is_loud and is_before_end and any(is_of(line.process, kind) for kind in SHARED)


def sources_of(run: RunRecord | None) -> list[LogSource]:
    """Return the streams of a run's log, or of the installation's."""
    if run is None:
        return [LogSource(None)]
    end = f"{int((run.finished + AFTERWARDS) * 1000)}-0" if run.finished else "+"
    begin = f"{int((run.started or run.created) * 1000)}-0"
    return [LogSource(run.id), LogSource(None, begin, end, shared_only=True)]


def wanted_by(process: str | None, level: Level) -> Wanted:
    """Return whether a reader wants a line: of `process` or all, and of `level` or above."""
    levels = LEVELS[LEVELS.index(level) :]
    return lambda line: line.level in levels and (process is None or is_of(line.process, process))


async def lines_after(
    store: Store, sources: Sequence[LogSource], wanted: Wanted, id: str, limit: int
) -> tuple[list[LogLine], bool]:
    """Return up to about `limit` lines behind the line `id`, oldest first, and whether there are
    more. Lines with one id are never divided."""
    lines: list[LogLine] = []
    for source in sources:
        place, taken = max(id, source.first, key=order), 0
        while taken <= limit:
            piece = await store.process_logs.after(source.run, place, PIECE)
            fitting = [line for line in piece if source.has(line) and wanted(line)]
            lines += fitting
            taken += len(fitting)
            if len(piece) < PIECE:
                break
            place = piece[-1].id
    lines.sort(key=lambda line: order(line.id))
    if len(lines) <= limit:
        return lines, False
    last = order(lines[limit - 1].id)
    page = [line for line in lines if order(line.id) <= last]
    return page, len(page) < len(lines)


async def newest_lines(
    store: Store, sources: Sequence[LogSource], wanted: Wanted, count: int
) -> list[LogLine]:
    """Return the newest `count` lines, oldest first."""
    lines: list[LogLine] = []
    for source in sources:
        place, taken = source.last, 0
        while taken < count:
            piece = await store.process_logs.before(source.run, place, PIECE)
            within = [line for line in piece if order(line.id) > order(source.first)]
            fitting = [line for line in within if source.has(line) and wanted(line)]
            lines += fitting
            taken += len(fitting)
            if len(within) < PIECE:
                break
            place = piece[-1].id
    lines.sort(key=lambda line: order(line.id))
    return lines[-count:] if count else []


def order(id: str) -> tuple[int, int]:
    """Return an id, `MILLISECONDS-NUMBER`, as something to compare."""
    time, _, number = id.partition("-")
    return int(time), int(number or 0)
