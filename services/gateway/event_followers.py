"""Serve the events of runs to clients that follow them.

Each follower reads the stream in pieces, as fast as its client takes them: a slow client delays
nobody, and holds one piece in memory. One reader for each run wakes its followers.
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi.sse import format_sse_event
from redis.exceptions import RedisError

from headrace.terminal import visible
from services.contracts.events import Event
from services.gateway.run_readers import Batches, RunReaders
from services.runtime.logs import get_logger
from services.store import Store

PIECE = 200
"""Events that a follower reads at once."""
READING = 8
"""Followers that read at the same time, each with a connection to Redis."""
BLOCKED = 16
"""Readers that wait in Redis at the same time, each with a connection to it. More poll instead."""
WAIT = 5.0
"""Seconds to wait for an event before checking whether the run is over."""
POLL = 1.0
"""Seconds between two reads of a reader that polls."""
PING = 15.0
"""Seconds without an event after which a follower gets a comment, so that no proxy gives up."""
COMMENT = b": ping\n\n"

log = get_logger(__name__)


class Followers:
    """Serves the events of runs to all clients of this process that follow them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = RunReaders(self._news)
        self._blocked = asyncio.Semaphore(BLOCKED)
        self._reading = asyncio.Semaphore(READING)
        self.close = self._readers.close

    async def follow(self, run: str, after: str) -> AsyncIterator[bytes]:
        """Yield the events of `run` after the id `after`, as server-sent events, until the run is
        over or Redis goes away."""
        async for events in self.events(run, after):
            yield b"".join(map(_encoded, events)) or COMMENT

    async def events(self, run: str, after: str) -> AsyncIterator[list[Event]]:
        """Yield the events of `run` after the id `after` as they happen, until the run is over or
        Redis goes away. An empty list comes after PING seconds without events."""
        try:
            async with self._readers.waiting(run, "") as (reader, news):
                while True:
                    # Checked before the read: the events up to the end are sent before the end.
                    ended = reader.ended
                    news.clear()
                    async with self._reading:
                        events = await self._store.events.read(run, after, count=PIECE)
                    if events:
                        after = events[-1].id
                        yield events
                    elif ended:
                        return
                    else:
                        try:
                            async with asyncio.timeout(PING):
                                await news.wait()
                        except TimeoutError:
                            yield []
        except RedisError as error:
            log.warning("events interrupted", run=run, error=type(error).__name__)

    async def _news(self, run: str) -> Batches:
        after = await self._store.events.before_newest(run, 0)
        yield ()
        while True:
            # Checked before the read: what happened up to the end is read after it.
            record = await self._store.runs.get(run)
            over = record is None or record.state.final
            events = await self._read(run, after, over)
            if over and not events:
                return
            after = events[-1].id if events else after
            yield [""] if events else ()

    async def _read(self, run: str, after: str, over: bool) -> list[Event]:
        if over:
            return await self._store.events.read(run, after)
        if self._blocked.locked():
            await asyncio.sleep(POLL)
            return await self._store.events.read(run, after)
        async with self._blocked:
            return await self._store.events.read(run, after, wait=WAIT)


def _encoded(event: Event) -> bytes:
    # JSON may hold line ends of Unicode, which would cut the event.
    data = visible(event.model_dump_json())
    return format_sse_event(data_str=data, event=event.kind, id=event.id)
