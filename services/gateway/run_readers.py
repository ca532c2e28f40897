"""Read a stream of each run once, and wake all requests that wait for its entries. A wake is only a
hint: each request looks for its entry itself."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager

from redis.exceptions import RedisError

from services.runtime.logs import get_logger
from services.runtime.tasks import end

log = get_logger(__name__)

Batches = AsyncGenerator[Iterable[str], None]
"""Reads a run's stream. The first batch of keys is empty and says that reading has begun. Another
empty batch comes after some seconds without entries."""


class RunReaders:
    """Keeps the readers of one stream in this process. A reader ends with its stream, or when
    nobody has waited for two batches."""

    def __init__(self, read: Callable[[str], Batches]) -> None:
        self._read = read
        self._readers: dict[str, RunReader] = {}

    @asynccontextmanager
    async def waiting(self, run: str, key: str) -> AsyncIterator["tuple[RunReader, asyncio.Event]"]:
        """Yield the reader of `run`, and an event that is set for each entry of `key` and at the
        end."""
        reader = self._readers.get(run)
        if reader is None or reader.ended:
            reader = self._readers[run] = RunReader(run, self._read(run))
            reader.task.add_done_callback(lambda _: self._forget(run, reader))
        news = asyncio.Event()
        waiting = reader.waiting.setdefault(key, set())
        waiting.add(news)
        try:
            await reader.began.wait()
            yield reader, news
        finally:
            waiting.discard(news)
            if not waiting:
                reader.waiting.pop(key, None)

    def _forget(self, run: str, reader: "RunReader") -> None:
        if self._readers.get(run) is reader:
            del self._readers[run]

    async def close(self) -> None:
        """End all readers."""
        await end([reader.task for reader in self._readers.values()])


class RunReader:
    """Reads one run's stream."""

    def __init__(self, run: str, batches: Batches) -> None:
        self.waiting: dict[str, set[asyncio.Event]] = {}
        self.began = asyncio.Event()
        self.ended = False
        self.task = asyncio.create_task(self._follow(run, batches))

    async def _follow(self, run: str, batches: Batches) -> None:
        try:
            async with aclosing(batches):
                is_idle = False
                async for keys in batches:
                    self.began.set()
                    self._wake(keys)
                    if is_idle and not self.waiting:
                        return
                    is_idle = not self.waiting
        except RedisError as error:
            # Each waiting request raises the error itself.
            log.warning("a stream is not read", run=run, error=type(error).__name__)
        finally:
            self.ended = True
            self.began.set()
            self._wake(list(self.waiting))

    def _wake(self, keys: Iterable[str]) -> None:
        for key in keys:
            for news in self.waiting.get(key, ()):
                news.set()
