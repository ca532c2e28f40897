"""asyncio helpers: finish a task for certain, and repeat a call of the store until it is taken."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

from services.runtime.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


async def finish(task: asyncio.Task[T]) -> T:
    """The result of `task`, for which this waits even if it is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def retry(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, repeated while Redis is away: it must be safe to make twice. `what` is
    its name in the log."""
    while True:
        try:
            return await call()
        except (RedisError, OSError) as error:
            log.warning(f"{what} waits for Redis", error=str(error))
            await asyncio.sleep(random.uniform(0.2, 2.0))
