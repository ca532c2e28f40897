"""Pages of logs: of a run, with the warnings of the gateways and the reward service during it, or
of the installation. Both streams have ids by the same clock, so one id is a place in both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.contracts.logs import LEVELS, Level, LogLine, is_of
from services.contracts.records import RunRecord
from services.store import Store

PIECE = 500
BEGIN = "0-0"
"""The place before the first line of a stream."""
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


class LinesRead(NamedTuple):
    """Lines of several streams, oldest first."""

    lines: list[LogLine]
    places: list[str]
    """For each stream, the id that later lines stand behind."""
    has_more: bool


async def lines_after(
    store: Store, sources: Sequence[LogSource], wanted: Wanted, places: Sequence[str], limit: int
) -> LinesRead:
    """Return up to `limit` lines behind these places. A stream keeps a place of its own, because a
    line may arrive in one stream after a line with a larger id in another was read."""
    matching: list[tuple[int, LogLine]] = []
    ends = []
    for number, (source, place) in enumerate(zip(sources, places, strict=True)):
        end, taken = max(place, source.first, key=order), 0
        while taken <= limit:
            piece = await store.process_logs.after(source.run, end, PIECE)
            fitting = [(number, line) for line in piece if source.has(line) and wanted(line)]
            matching += fitting
            taken += len(fitting)
            end = piece[-1].id if piece else end
            if len(piece) < PIECE:
                break
        ends.append(end)
    matching.sort(key=lambda each: order(each[1].id))
    page, later = matching[:limit], matching[limit:]
    for number in {number for number, _ in later}:
        shown = [line.id for of, line in page if of == number]
        ends[number] = shown[-1] if shown else places[number]
    return LinesRead([line for _, line in page], ends, bool(later))


async def newest_lines(
    store: Store, sources: Sequence[LogSource], wanted: Wanted, count: int
) -> LinesRead:
    """Return the newest `count` lines."""
    lines: list[LogLine] = []
    ends = []
    for source in sources:
        end, place, taken = "", source.last, 0
        while taken < count or not end:
            piece = await store.process_logs.before(source.run, place, PIECE if count else 1)
            end = end or (piece[0].id if piece else BEGIN)
            within = [line for line in piece if order(line.id) > order(source.first)]
            fitting = [line for line in within if source.has(line) and wanted(line)]
            lines += fitting
            taken += len(fitting)
            if len(within) < PIECE:
                break
            place = piece[-1].id
        ends.append(end)
    lines.sort(key=lambda line: order(line.id))
    return LinesRead(lines[-count:] if count else [], ends, False)


def order(id: str) -> tuple[int, int]:
    """Return an id, `MILLISECONDS-NUMBER`, as something to compare."""
    time, _, number = id.partition("-")
    return int(time), int(number or 0)
