"""Followers of runs' events: one reader for each run that is followed, however many follow it.

A reader keeps its run's newest events, encoded once. A follower further behind reads the stream
itself, in pieces, as fast as its client takes them. So a slow client delays nobody, and holds one
piece in memory.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from fastapi.sse import format_sse_event
from redis.exceptions import RedisError

from services.contracts.events import Event
from services.runtime.logs import get_logger
from services.runtime.terminal import visible
from services.store import Store

KEPT = 1000
"""Events that a reader keeps."""
PIECE = 200
"""Events that a follower reads at once while it is behind."""
CATCHING_UP = 8
"""Followers that read the stream themselves at the same time, each with a connection to Redis."""
BLOCKED = 16
"""Readers that wait in Redis at the same time, each with a connection to it. More poll instead."""
WAIT = 5.0
"""Seconds to wait for an event before looking whether the run is over."""
POLL = 1.0
"""Seconds between two looks of a reader that polls."""
PING = 15.0
"""Seconds without an event after which followers get a comment, so that no proxy gives up."""

log = get_logger(__name__)


class Followers:
    """All followers of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[str, _Reader] = {}
        self._blocked = asyncio.Semaphore(BLOCKED)
        self._catching_up = asyncio.Semaphore(CATCHING_UP)

    async def follow(self, run: str, after: str) -> AsyncIterator[bytes]:
        """The events of `run` after the id `after`, as server-sent events, until the run is over
        or Redis goes away."""
        reader = self._readers.get(run)
        if reader is None or reader.ended:
            reader = self._readers[run] = _Reader(run, self._store, self._blocked)
        reader.followers += 1
        place = _place(after)
        try:
            await reader.began.wait()
            while True:
                # Looked up before the events: what comes up to the end is sent before the end.
                ended, news, since = reader.ended, reader.news, reader.since
                pieces = reader.later_than(place)
                if pieces is None:
                    async with self._catching_up:
                        events = await self._store.events.read(run, _id(place), count=PIECE)
                    pieces = [(_place(event.id), _encoded(event)) for event in events]
                    # Events that nobody has any more leave a gap.
                    place = place if pieces else since
                if pieces:
                    place = pieces[-1][0]
                    yield b"".join(encoded for _, encoded in pieces)
                elif ended:
                    return
                elif place >= since:
                    await news.wait()
                    if not reader.ended and reader.quiet:
                        yield b": ping\n\n"
        except RedisError as error:
            log.warning("events interrupted", run=run, error=type(error).__name__)
        finally:
            reader.followers -= 1
            if not reader.followers:
                reader.stop()
                if self._readers.get(run) is reader:
                    del self._readers[run]


Place = tuple[int, int]
"""An event's id, in the order of ids."""


class _Reader:
    """Reads the events of one run as they come."""

    def __init__(self, run: str, store: Store, blocked: asyncio.Semaphore) -> None:
        self.followers = 0
        self.began = asyncio.Event()
        self.ended = False
        self.news = asyncio.Event()
        """Set, and replaced by another, when there are events, at the end, and for a ping."""
        self.quiet = False
        """Whether the latest news was a ping."""
        self.since: Place = (0, 0)
        """The events after this one are kept, all of them."""
        self._run, self._store, self._blocked = run, store, blocked
        self._kept: deque[tuple[Place, bytes]] = deque()
        self._task = asyncio.create_task(self._read())

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()

    def later_than(self, place: Place) -> list[tuple[Place, bytes]] | None:
        """The kept events after `place`; None where some may be missing."""
        if place < self.since:
            return None
        if not self._kept or self._kept[-1][0] <= place:
            return []
        return [entry for entry in self._kept if entry[0] > place]

    async def _read(self) -> None:
        try:
            after = await self._store.events.before_newest(self._run, 0)
            self.since = _place(after)
            self.began.set()
            last_tell = time.monotonic()
            # Asked each time: before Python 3.12 a read from Redis may lose the cancellation.
            while not self._task.cancelling():
                # Looked up before the read: what happened up to the end is read after it.
                record = await self._store.runs.get(self._run)
                over = record is None or record.state.final
                batch = await self._batch(after, over)
                if over and not batch:
                    return
                for event in batch:
                    self._kept.append((_place(event.id), _encoded(event)))
                    after = event.id
                while len(self._kept) > KEPT:
                    self.since = self._kept.popleft()[0]
                if batch or time.monotonic() - last_tell > PING:
                    last_tell = time.monotonic()
                    self._tell(quiet=not batch)
        except RedisError as error:
            log.warning("events interrupted", run=self._run, error=type(error).__name__)
        finally:
            self.ended = True
            self.began.set()
            self._tell(quiet=False)

    async def _batch(self, after: str, over: bool) -> list[Event]:
        if over:
            return await self._store.events.read(self._run, after)
        if self._blocked.locked():
            await asyncio.sleep(POLL)
            return await self._store.events.read(self._run, after)
        async with self._blocked:
            return await self._store.events.read(self._run, after, wait=WAIT)

    def _tell(self, quiet: bool) -> None:
        event, self.news, self.quiet = self.news, asyncio.Event(), quiet
        event.set()


def _place(id: str) -> Place:
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number or 0)


def _id(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _encoded(event: Event) -> bytes:
    # JSON may hold line ends of Unicode, which would cut the event.
    data = visible(event.model_dump_json())
    return format_sse_event(data_str=data, event=event.kind, id=event.id)
