"""Signals to children that have just ended, as a busy machine has them."""

import asyncio
import os
import signal
import sys

from services.runtime.children import signal_child

PAUSE = (sys.executable, "-c", "import signal; signal.pause()")


async def test_a_child_is_signalled() -> None:
    child = await asyncio.create_subprocess_exec(*PAUSE)
    signal_child(child, signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM


async def test_a_signal_leaves_the_status_of_a_child_that_has_just_ended() -> None:
    watcher = asyncio.PidfdChildWatcher()
    watcher.attach_loop(asyncio.get_running_loop())
    # This watcher reaps in the event loop's thread: not before the test waits.
    asyncio.get_event_loop_policy().set_child_watcher(watcher)
    try:
        child = await asyncio.create_subprocess_exec(*PAUSE)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (nothing else runs)
        signal_child(child, signal.SIGTERM)
        assert await child.wait() == -signal.SIGKILL
    finally:
        asyncio.get_event_loop_policy().set_child_watcher(asyncio.ThreadedChildWatcher())


async def test_only_children_get_signals() -> None:
    """As one that has got the pid of a reaped child."""
    child = await asyncio.create_subprocess_exec(*PAUSE)
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    pid = child.pid
    try:
        child.pid = os.getpid()
        signal_child(child, signal.SIGUSR1)
        assert seen == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.kill(pid, signal.SIGKILL)
        await child.wait()
