"""Calls of the store that are made until Redis takes them, and so may be made twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.exceptions import RedisError

from services.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


async def insist(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, asked again while Redis is away; `what` waits, says the log."""
    while True:
        try:
            return await call()
        except (RedisError, OSError) as error:
            log.warning(f"{what} waits for Redis", error=str(error))
            await asyncio.sleep(random.uniform(0.2, 2.0))
