"""Signals to asyncio's child processes, which leave their exit status to whoever waits for it."""

import asyncio
import contextlib
import os
import signal


def signal_child(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a child, unless it has ended.

    asyncio's own `terminate` and `kill` poll the child first. Where it has just ended, they take
    its exit status from the thread that waits for it: that warns of an "unknown child process", and
    reports the code 255. This reaps nothing, and signals no other process that has got the pid.
    """
    if process.returncode is not None:
        return
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    # ChildProcessError: the child has been reaped, and the pid is another process's.
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        signal.pidfd_send_signal(pidfd, number)
    os.close(pidfd)
