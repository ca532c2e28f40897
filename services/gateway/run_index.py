"""Keeps the summaries of all runs in this process, newest first, for lists, searches and streams.

A summary is read from Redis after its run's change was announced
(`services/store/runs/changed_runs.py`). A reader calls `catch_up` first, and then sees at least
what Redis had when it called. Any number of readers share one round trip. `keep_rereading` finds
what nobody announced.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from services.contracts.records import RunSummary
from services.runtime.logs import get_logger
from services.store import Store, Unreadable

PIECE = 200
"""Runs read in one round trip."""
REREAD_SECONDS = 5.0
"""Seconds between two pieces that are read although no change was announced."""

log = get_logger(__name__)


@dataclass(frozen=True)
class IndexedRun:
    """A run as the index keeps it."""

    summary: RunSummary
    place: tuple[float, str]
    """Its place among all runs: time of submission, id."""
    text: str
    """The text that a search looks at, in lower case."""


Test = Callable[[IndexedRun], bool]


class RunIndex:
    """The summaries of all runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, IndexedRun] = {}
        self._places: list[tuple[float, str]] = []
        """Ascending."""
        self._present: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._reread: Collection[str] = ()
        self._counted = 0
        """Runs that Redis listed when all summaries were last read for their count."""
        self._news: set[str] = set()
        self.live: set[str] = set()
        """Ids of the runs that are not over."""
        self.changes: str | None = None
        """The place in the stream of changes up to which the summaries are read. None: they are to
        be read anew."""
        self.loads = 0
        """How often all summaries were read, the first time included."""

    async def catch_up(self) -> None:
        """Read the runs that have changed. Raises RedisError, and Unreadable."""
        # A read that began before this call may have missed a change.
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._present))
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._next)

    async def _after(self, present: asyncio.Task[None] | None) -> None:
        if present is not None:
            await asyncio.wait([present])
        self._present, self._next = self._next, None
        try:
            await self._read()
        except (RedisError, Unreadable):
            # Redis may come back without its newest writes.
            self.changes = None
            raise

    async def _read(self) -> None:
        reread, self._reread = self._reread, ()
        changed = await self._store.run_changes.after(self.changes) if self.changes else None
        if changed is None:
            await self._load()
            return
        ids, place = changed
        await self._take({*ids, *reread})
        self.changes = place

    async def _load(self) -> None:
        place = await self._store.run_changes.newest()
        listed = await self._store.runs.listed()
        await self._take({*listed, *self._runs}, listed)
        self.changes = place
        self.loads += 1

    async def _take(self, ids: Collection[str], listed: Mapping[str, float] | None = None) -> None:
        """Read the runs `ids`. A run that `listed` lacks is gone; without `listed`, look."""
        wanted = [id for id in ids if listed is None or id in listed]
        for id in set(ids).difference(wanted):
            self._put(id, None)
        for at in range(0, len(wanted), PIECE):
            piece = wanted[at : at + PIECE]
            for id, summary in zip(piece, await self._store.runs.summaries(piece), strict=True):
                self._put(id, summary, listed[id] if listed else None)

    def _put(self, id: str, summary: RunSummary | None, created: float | None = None) -> None:
        """Keep or drop a run. `created`: when Redis lists it as submitted, if that was read."""
        before = self._runs.get(id)
        if (before.summary if before else None) == summary:
            return
        self._news.add(id)
        self.live.discard(id)
        if before is not None and summary is None:
            del self._runs[id], self._places[bisect_left(self._places, before.place)]
        if summary is None:
            return
        if not summary.state.final:
            self.live.add(id)
        if before is None:
            # The record of a damaged run may have no time.
            place = summary.created if created is None else created, id
            insort(self._places, place)
        else:
            place = before.place
        self._runs[id] = IndexedRun(summary, place, searched_text(summary))

    def get(self, id: str) -> RunSummary | None:
        """Return the summary of a run, as it was read last."""
        indexed = self._runs.get(id)
        return indexed.summary if indexed else None

    async def all(self) -> list[RunSummary]:
        """Return all runs, newest first. Raises as `catch_up`."""
        await self.catch_up()
        return [self._runs[id].summary for _, id in reversed(self._places)]

    async def page(
        self, limit: int, before: tuple[float, str] | None, tests: Sequence[Test] = ()
    ) -> tuple[list[RunSummary], tuple[float, str] | None]:
        """Return up to `limit` runs that pass all `tests`, newest first, and the `before` of the
        next page (None on the last one). Runs that come or go meanwhile do not shift a page. Raises
        as `catch_up`."""
        await self.catch_up()
        end = len(self._places) if before is None else bisect_left(self._places, before)
        page: list[IndexedRun] = []
        while end > 0 and len(page) <= limit:
            begin = max(0, end - PIECE)
            runs = [self._runs[id] for _, id in reversed(self._places[begin:end])]
            for test in tests:
                runs = [run for run in runs if test(run)]
            page += runs
            end = begin
        following = page[limit - 1].place if len(page) > limit else None
        return [run.summary for run in page[:limit]], following

    def drain(self) -> tuple[list[RunSummary], list[str]]:
        """Return the runs that have changed since the last call, and the ids of the deleted
        ones."""
        news, self._news = sorted(self._news), set()
        return (
            [self._runs[id].summary for id in news if id in self._runs],
            [id for id in news if id not in self._runs],
        )

    async def keep_rereading(
        self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Read all runs again, piece by piece, without an end. A process that died between a change
        and its announcement is why."""
        while True:
            try:
                await self.catch_up()
                count = await self._store.runs.count()
                # Redis may list runs without a record, which no index has.
                if count not in (len(self._runs), self._counted):
                    self._counted, self.changes = count, None
                for at in range(0, len(self._places), PIECE):
                    await sleep(REREAD_SECONDS)
                    self._reread = [id for _, id in self._places[at : at + PIECE]]
                    await self.catch_up()
            except (RedisError, Unreadable) as error:
                log.debug("summaries of runs are not read", reason=str(error))
            await sleep(REREAD_SECONDS)


def searched_text(run: RunSummary) -> str:
    """Return all that a search looks at, in lower case."""
    parts = [run.name, run.id, *run.tags, run.notes, run.model, run.recipe or "", *run.datasets]
    return "\n".join(parts).casefold()
