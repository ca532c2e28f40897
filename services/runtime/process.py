"""Processes that must not outlive what started them, and an exact way to end those that did.

Linux only. Two independent guards, because each has a gap the other closes:

* `PR_SET_PDEATHSIG` (prctl(2)): the kernel kills a child when the thread that forked it ends. Every
  process of Headrace sets it, as a `preexec_fn` (`headrace.death_signal`) or as its first call
  (`die_with_parent`).
* a marker in the environment, inherited by all descendants: `kill_marked` finds and kills whatever
  a dead supervisor left, grandchildren and re-parented processes included.

Never signals a process by name, nor by a bare pid: a pid may belong to somebody else by the time a
signal arrives, so every kill here goes through a pidfd that was opened before the check.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from headrace.death_signal import set_death_signal

# `headrace up` sets these for its children (services.launch).
INSTANCE = "HEADRACE_INSTANCE"
PART = "HEADRACE_PART"
SUPERVISOR = "HEADRACE_SUPERVISOR"
RESTARTS = "HEADRACE_RESTARTS"

PRIVATE = 0o077
"""The umask of all processes: only their user can read what they write."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Must be the first call of a child's
    main.

    The signal is tied to the *thread* that started this process, and holds until the calling thread
    ends: call it from the main thread. A parent that has ended before this call cannot signal any
    more. Under `headrace up` the chain of parents then no longer leads to the supervisor, and the
    process exits at once with code 1.
    """
    set_death_signal()
    supervisor = os.environ.get(SUPERVISOR, "")
    if supervisor.isdigit() and not _descends_from(int(supervisor)):
        sys.stderr.write(f"headrace up (pid {supervisor}) has ended, and so does this process\n")
        sys.stderr.flush()
        os._exit(1)


def keep_files_private() -> None:
    """Make this process's new files, folders and sockets readable for its user alone."""
    os.umask(PRIVATE)


def started_at(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot. Together with the pid this names one
    process for ever.

    Return None if the process does not exist, or is a zombie.
    """
    fields = _stat(pid)
    if fields is None or fields[0] == "Z":
        return None
    return int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of proc(5)'s stat from the third (state) on; the second may contain any
    character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _descends_from(ancestor: int) -> bool:
    pid = os.getpid()
    while pid > 0:
        if pid == ancestor:
            return True
        fields = _stat(pid)
        if fields is None:
            return False
        pid = int(fields[1])
    return False


def _carries(pid: int, marker: Mapping[str, str]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return {f"{name}={value}".encode() for name, value in marker.items()} <= set(
        environment.split(b"\0")
    )


def marked(marker: Mapping[str, str], spared: Collection[int] = ()) -> list[int]:
    """Return the pids of all living processes, except `spared`, whose environment at their exec
    contains `marker`."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return sorted(pid for pid in pids - {os.getpid(), *spared} if _carries(pid, marker))


def kill_marked(
    marker: Mapping[str, str], within: float = 10.0, spared: Collection[int] = ()
) -> tuple[list[int], list[int]]:
    """Kill every process that carries `marker`, except `spared`, and repeat until all are gone.

    Returns the pids that were killed, and those that still live after `within` seconds (a process
    stuck in the kernel, as under a failed GPU driver). Raises ValueError for an empty marker, which
    would match every process.
    """
    if not marker:
        raise ValueError("kill_marked needs a marker: an empty one matches every process")
    killed: set[int] = set()
    deadline = time.monotonic() + within
    while pids := marked(marker, spared):
        pidfds = {pid: pidfd for pid in pids if (pidfd := _kill(pid, marker)) is not None}
        for pid, pidfd in pidfds.items():
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            # A zombie has ended, too.
            if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                killed.add(pid)
            os.close(pidfd)
        if time.monotonic() >= deadline:
            break
    return sorted(killed), marked(marker, spared)


def _kill(pid: int, marker: Mapping[str, str]) -> int | None:
    """Send SIGKILL to `pid` if it carries `marker`, and return its pidfd. The pidfd is opened
    before the check and gets the signal, so another process that got the pid meanwhile is safe."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if _carries(pid, marker):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return pidfd
    os.close(pidfd)
    return None
