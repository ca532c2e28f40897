"""Children that do not outlive their parent: `PR_SET_PDEATHSIG` of prctl(2). Linux only."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded at import: between fork and exec nothing may take the dynamic loader's lock.
_libc = ctypes.CDLL(None, use_errno=True)


def set_death_signal() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")


def die_with(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` for `subprocess.Popen`: the child dies with `parent`, the caller's own
    pid.

    For programs that cannot set the signal themselves. Start the child from a thread that lives as
    long as the child should.
    """

    def prepare() -> None:
        set_death_signal()
        if os.getppid() != parent:
            os._exit(1)

    return prepare
