"""Limits on a chat template, which is a program that comes with a model: jinja's sandbox hides the
process from it, and leaves it all time and memory."""

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 2.0
"""Of CPU time, for one rendering; templates need milliseconds."""
MEMORY = 512 << 20
"""Bytes that the process may grow by meanwhile."""
CHARACTERS = 1 << 23
"""Of what it renders: more than any context holds."""


class TemplateTooGreedy(ValueError):
    """The template needs more than the limits."""


@contextmanager
def limited() -> Iterator[None]:
    """Renders chat templates within the limits. Raises TemplateTooGreedy.

    Only in the main thread, where alarms arrive, between bytecodes and within long multiplications;
    in other threads nothing is limited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    before = signal.signal(signal.SIGPROF, _expired)
    try:
        if soft == resource.RLIM_INFINITY or soft > most:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        # Again and again, in case an alarm is raised where Python ignores exceptions.
        signal.setitimer(signal.ITIMER_PROF, SECONDS, 0.1)
        yield
    except MemoryError:
        raise TemplateTooGreedy(f"it needs more than {MEMORY >> 20} MiB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _expired(number: int, frame: FrameType | None) -> None:
    raise TemplateTooGreedy(f"it runs for more than {SECONDS:g} s")
