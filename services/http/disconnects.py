"""Ends work when the client that asked for it disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


async def while_connected(client: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if the client disconnects first. Then `work` is
    cancelled, and has ended."""
    working = asyncio.create_task(work)
    # The body has been read, so the next message says that the client has left.
    gone = asyncio.ensure_future(client.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait([working])
