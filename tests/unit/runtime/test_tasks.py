"""Cancelled tasks end, even if they lose a cancellation."""

import asyncio
import contextlib

from services.runtime.tasks import end


async def test_a_task_that_loses_a_cancellation_still_ends() -> None:
    async def deaf_once() -> None:
        # Like `asyncio.wait_for` before Python 3.12 when the result arrives at the same time.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(deaf_once()) for _ in range(2)]
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_ending_no_tasks_returns() -> None:
    await end([])
