"""Helpers for asyncio: finish a task despite cancellation, run calls together, retry a store
call."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from redis.exceptions import RedisError

from services.runtime.logs import get_logger
from services.runtime.tasks import end

log = get_logger(__name__)

T = TypeVar("T")


async def finish(task: asyncio.Task[T]) -> T:
    """Wait until `task` ends, even if the caller is cancelled meanwhile. Return its result."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run `calls` at once, and return their results in order. If one raises, the others end."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await end(task for task in tasks if not task.done())


async def retry(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Call `call` until Redis answers, and return the result. It must be safe to call twice. `what`
    names the call in the log."""
    while True:
        try:
            return await call()
        except (RedisError, OSError) as error:
            log.warning(f"{what} waits for Redis", error=str(error))
            await asyncio.sleep(random.uniform(0.2, 2.0))
