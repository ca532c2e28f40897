"""Ends asyncio tasks reliably."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_SECONDS = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks` and return when all have ended, whatever their result.

    Cancels repeatedly: before Python 3.12 `asyncio.wait_for` loses a cancellation that arrives with
    its result. redis-py uses `wait_for`, so one in a hundred cancellations of a task that reads
    from Redis is lost.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
