"""Waits for a request without a timeout, as long as its server is healthy."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 30.0
"""Seconds between two health checks, and the timeout of each."""


async def while_healthy(
    request: Coroutine[Any, Any, T],
    look: Callable[[], Awaitable[object]],
    every: float = LOOK_SECONDS,
) -> T:
    """Return the result of `request`. Meanwhile `look` checks the server's health repeatedly. If
    `look` raises, the request is cancelled."""
    asked = asyncio.create_task(request)
    try:
        while not (await asyncio.wait([asked], timeout=every))[0]:
            await look()
        return asked.result()
    finally:
        asked.cancel()
