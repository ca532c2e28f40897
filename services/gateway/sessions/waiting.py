"""Requests that wait for their turn to be recorded: one reader for each run that has any.

The log of calls only wakes them. Each request looks for its answer in the session itself, at every
wake and every few seconds. So an unread entry of the log only delays an answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from services.runtime.tasks import end
from services.store import Store

WAIT_SECONDS = 5.0


class Waiting:
    """All waiting requests of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers: dict[str, _Reader] = {}

    @asynccontextmanager
    async def answer(self, run: str, call: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when `call` may have ended, during the block."""
        reader = self._readers.get(run)
        if reader is None or reader.task.done():
            reader = self._readers[run] = _Reader(run, self._store)
        event = asyncio.Event()
        waiting = reader.waiting.setdefault(call, set())
        waiting.add(event)
        try:
            await reader.began.wait()
            yield event
        finally:
            waiting.discard(event)
            if not waiting:
                reader.waiting.pop(call, None)

    async def close(self) -> None:
        """End all readers."""
        await end(reader.task for reader in self._readers.values())


class _Reader:
    """Reads one run's log of calls, until for some seconds nobody waits."""

    def __init__(self, run: str, store: Store) -> None:
        self.waiting: dict[str, set[asyncio.Event]] = {}
        self.began = asyncio.Event()
        self._run, self._store = run, store
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        # If Redis is away, each waiting request raises the error itself.
        try:
            with contextlib.suppress(RedisError):
                calls = self._store.agent_calls
                after = await calls.newest("ended", self._run)
                self.began.set()
                waited = True
                while self.waiting or waited:
                    waited = bool(self.waiting)
                    after, ended = await calls.news("ended", self._run, after, WAIT_SECONDS)
                    for call, _ in ended:
                        for event in self.waiting.get(call, ()):
                            event.set()
        finally:
            self.began.set()
