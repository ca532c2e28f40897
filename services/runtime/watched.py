"""A request that may take as long as it likes, while the server that it waits for is healthy."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_SECONDS = 30.0
"""Between two health checks while a request waits, and what each of them may take."""


async def while_healthy(
    request: Coroutine[Any, Any, T],
    look: Callable[[], Awaitable[object]],
    every: float = LOOK_SECONDS,
) -> T:
    """The result of `request`. While it is not there, `look` asks for the server's health again and
    again, and raises where that does not answer: then the request is given up."""
    asked = asyncio.create_task(request)
    try:
        while not (await asyncio.wait([asked], timeout=every))[0]:
            await look()
        return asked.result()
    finally:
        asked.cancel()
