"""Signals to asyncio's child processes that leave the exit status to the waiting task."""

import asyncio
import contextlib
import os
import signal


def signal_child(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a child, unless it has ended.

    asyncio's own `terminate` and `kill` poll the child first. If it has just ended, they take its
    exit status from the thread that waits for it, which then warns of an "unknown child process"
    and reports the code 255. This function leaves the exit status alone, and never signals another
    process with the same pid.
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
