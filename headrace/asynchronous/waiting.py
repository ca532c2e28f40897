"""Waiting until a run or a chain is over."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import TypeVar

from headrace.asynchronous.connection import AsyncConnection
from headrace.errors import RunFailed, WaitTimeout
from headrace.models import ChainView, RunRecord
from headrace.request import Request

T = TypeVar("T", RunRecord, ChainView)
FINAL = ("succeeded", "failed", "cancelled")


async def until_over(
    client: AsyncConnection, request: Request[T], kind: str, timeout: float | None
) -> AsyncIterator[T]:
    """Load a record again and again, and yield it each time, until its run or chain (`kind`) is
    over. Raises RunFailed if it failed, and WaitTimeout after `timeout` seconds."""
    start, pause = monotonic(), 0.25
    while True:
        record = await client.send(request)
        yield record
        named = f"{kind} {record.name} ({record.id})"
        if record.state == "failed":
            raise RunFailed(f"{named} failed: {record.reason}")
        if record.state in FINAL:
            return
        remaining = float("inf") if timeout is None else start + timeout - monotonic()
        if remaining <= 0:
            raise WaitTimeout(f"{named} is {record.state} after {timeout:g} s; it goes on")
        pause = min(5.0, pause * 1.5)
        await asyncio.sleep(min(pause, remaining))
