"""The learner's connection to the store, and its lock on a pool, for synchronous code.

The store is asynchronous. One event loop on its own thread runs the store's calls, which block
their caller. Within `learner` only `learner.store` imports the store.
"""

import itertools
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TypeVar

import anyio
from anyio.from_thread import start_blocking_portal
from redis.exceptions import RedisError

from learner.settings import EXIT_CRASH
from services.contracts.devices import LearnerDevices
from services.contracts.records import RunRecord
from services.payloads import Payloads, place_of
from services.runtime.logs import get_logger
from services.settings import Settings
from services.store import RedisFull, Store
from services.store.at_start import require_durable
from services.store.insight import lock_token
from services.store.runs.pools import LOCK_SECONDS

log = get_logger(__name__)

T = TypeVar("T")

REPORT_EVERY = 5
"""Prolongations of the lock between two reports of the learner's devices."""
FULL_SECONDS = 1.0
"""Seconds before a call that a full Redis has refused is retried."""


class PoolTaken(RuntimeError):
    """Another learner serves this pool."""


class StoreThread:
    """A connection to the store on its own thread, and rank 0's lock on its pool."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        """Connect. Raises UnsafeRedis, RedisError or OSError if that fails. `stop` is set when
        another learner takes over the pool."""
        self.pool = settings.pool
        self.redis_url = settings.redis_url.get_secret_value()
        self._alive_file = settings.alive_file
        self.lost = False
        self._stop = stop
        self.when_full: Callable[[str], None] = lambda reason: None
        """Called with the reason when Redis refuses data because it is full. `when_not_full` is
        called when Redis has memory again."""
        self.when_not_full: Callable[[], None] = lambda: None
        self.devices: Callable[[], LearnerDevices] | None = None
        """Describes what the learner computes on. Reported every few seconds, because submissions
        are compared with the memory that is free."""
        self._waiting, self._counting = 0, threading.Lock()
        self._token = lock_token(socket.gethostname(), os.getpid(), time.time())
        self._held: Future[None] | None = None
        self._trains: str | None = None
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            self.store = self.call(lambda: _connected(settings))
            stack.callback(lambda: self.call(self.store.close))
            self.payloads = Payloads(self.store, place_of(settings))
            self._stack = stack.pop_all()

    def __enter__(self) -> "StoreThread":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is not None:
            self._held.cancel()
            # Without Redis the lock lapses by itself.
            with suppress(RedisError, OSError):
                self.call(lambda: self.store.pools.unlock(self.pool, self._token))
        self._stack.close()

    def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an asynchronous call. If Redis is full, the call had no effect and
        is retried until there is memory. Raises RedisFull if this process should end."""
        waits = False
        while True:
            try:
                result = self._portal.call(action)
            except RedisFull as error:
                if self._stop.is_set():
                    raise
                if not waits:
                    waits = True
                    self._count_waiting(1, str(error))
                self._stop.wait(FULL_SECONDS)
            else:
                if waits:
                    self._count_waiting(-1, "")
                return result

    def _count_waiting(self, more: int, reason: str) -> None:
        """Report once that calls wait for memory, and once that all calls have gone through."""
        with self._counting:
            self._waiting += more
            news = self._waiting == (1 if more > 0 else 0)
        if not news:
            return
        if more > 0:
            log.error("the learner waits", reason=reason)
            self.when_full(f"{reason}, and the run goes on by itself")
        else:
            log.info("Redis has memory again")
            self.when_not_full()

    def take_pool(self) -> None:
        """Become the pool's learner, and hold the lock while this process lives. Raises PoolTaken.

        The lock of a killed learner lapses within LOCK_SECONDS. Ranks start again faster than that,
        so a successor waits for the lapse. If the lock is prolonged meanwhile, another learner
        holds it.
        """
        holder = self.call(self._lock)
        if holder:
            raise PoolTaken(
                f"pool {self.pool!r} already has a learner ({holder.partition(':')[0]}); stop it "
                "first, or start this one with another --pool"
            )
        self._held = self._portal.start_task_soon(self._keep)

    async def _lock(self) -> str:
        """Take the lock. Return '' on success, else the token of the live holder."""
        pools, before = self.store.pools, LOCK_SECONDS
        while holder := await pools.lock(self.pool, self._token, LOCK_SECONDS):
            remaining = await pools.lock_seconds(self.pool)
            if remaining > LOCK_SECONDS + 1:
                # Redis' clock has gone back. A live learner will prolong the lock anyway.
                await pools.prolong(self.pool, holder, LOCK_SECONDS)
                continue
            if remaining > before:
                return holder
            before = remaining
            await anyio.sleep(0.5)
        return ""

    async def _keep(self) -> None:
        for beat in itertools.count(1):
            await anyio.sleep(LOCK_SECONDS / 5)
            try:
                await self._hold()
                if self.lost:
                    return
                await self._leave_cancelled()
                if self.devices is not None and beat % REPORT_EVERY == 0:
                    await self.store.pools.report_devices(self.pool, self.devices())
            except (RedisError, OSError) as error:
                log.warning("the pool's lock was not prolonged", reason=str(error))

    async def _hold(self) -> None:
        """Prolong the lock, or notice that another learner has it."""
        if await self.store.pools.prolong(self.pool, self._token, LOCK_SECONDS):
            if self._alive_file is not None:
                self._alive_file.touch()
            return
        if await self.store.pools.lock(self.pool, self._token, LOCK_SECONDS):
            if not self.lost:
                log.error("another learner has taken the pool over", pool=self.pool)
            self.lost = True
            self._stop.set()

    @contextmanager
    def training(self, run: str) -> Iterator[None]:
        """While `run` is trained, end this process as soon as the run is `cancelled`."""
        self._trains = run
        try:
            yield
        finally:
            self._trains = None

    async def _leave_cancelled(self) -> None:
        """End this process in the middle of a step if another party has ended its run: only
        `headrace cancel --now` does that. The supervisor starts all ranks again, for the next
        run."""
        if self._trains is not None and await self.store.runs.is_cancelled(self._trains):
            log.warning("the run was cancelled at once: the ranks start again", run=self._trains)
            os._exit(EXIT_CRASH)

    def next_run(self) -> RunRecord | None:
        """Return the pool's active run, else activate and return the first run in its queue. Return
        None if the queue is empty, or if another learner has the pool.

        The lock is checked first. Otherwise a learner that was replaced while it slept could take
        the run from its successor.
        """

        async def taken() -> RunRecord | None:
            await self._hold()
            return None if self.lost else await self.store.runs.take(self.pool)

        return self.call(taken)


async def _connected(settings: Settings) -> Store:
    store = Store.from_url(settings.redis_url.get_secret_value())
    try:
        await require_durable(store, settings)
    except BaseException:
        await store.close()
        raise
    return store
