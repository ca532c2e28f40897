"""Tasks that are told to end do so, also those that lose a cancellation."""

import asyncio
import contextlib

from services.runtime.tasks import end


async def test_a_task_that_loses_a_cancellation_is_ended_all_the_same() -> None:
    async def deaf_once() -> None:
        # As `asyncio.wait_for` is before Python 3.12, where the result arrives at the same time.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(deaf_once()) for _ in range(2)]
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_nothing_to_end_is_no_error() -> None:
    await end([])
