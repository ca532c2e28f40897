"""Limits on a chat template, which is a program that comes with a model: jinja's sandbox hides the
process from it, and leaves it all time and memory."""

import faulthandler
import math
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 2.0
"""The most CPU time of one rendering, in seconds; templates need milliseconds."""
HARD_SECONDS = 10
"""CPU time after which the kernel ends the process: nothing interrupts a comparison, a hash or a
product in C, and two lists of lists can be compared for years."""
MEMORY = 512 << 20
"""Bytes that the process may grow by meanwhile."""
CHARACTERS = 1 << 23
"""The most characters of rendered text: more than any context holds."""


class TemplateTooGreedy(ValueError):
    """The template needs more than the limits."""


@contextmanager
def limited() -> Iterator[None]:
    """Limit the time and memory of a chat template that is rendered in this block. Raises
    TemplateTooGreedy.

    It limits only the main thread, since alarms arrive only there: between bytecodes, and within
    long multiplications.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft_cpu, hard_cpu = resource.getrlimit(resource.RLIMIT_CPU)
    last = math.ceil(time.process_time()) + HARD_SECONDS
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    before = signal.signal(signal.SIGPROF, _expired)
    try:
        if soft == resource.RLIM_INFINITY or soft > most:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        if soft_cpu == resource.RLIM_INFINITY or soft_cpu > last:
            resource.setrlimit(resource.RLIMIT_CPU, (last, hard_cpu))
        # Again and again, in case an alarm is raised where Python ignores exceptions.
        signal.setitimer(signal.ITIMER_PROF, SECONDS, 0.1)
        yield
    except MemoryError:
        raise TemplateTooGreedy(f"it needs more than {MEMORY >> 20} MiB of memory") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (soft_cpu, hard_cpu))
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


@contextmanager
def noted(note: Path) -> Iterator[None]:
    """Have a process that the kernel ends for its CPU time leave a traceback in the file `note`, so
    that its successor fails the run. Call `check_noted` first. Without space for the file, the
    note is skipped."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        # Other workers of the host may write to it.
        file = note.open("a")
    except OSError:
        yield
        return
    with file:
        faulthandler.register(signal.SIGXCPU, file, all_threads=False, chain=True)
        try:
            yield
        finally:
            faulthandler.unregister(signal.SIGXCPU)
            if not note.exists() or note.stat().st_size == 0:
                note.unlink(missing_ok=True)


def check_noted(note: Path) -> None:
    """Raise TemplateTooGreedy if a process has left the `note`."""
    if note.exists() and note.stat().st_size:
        raise TemplateTooGreedy(
            f"the chat template ran for more than {HARD_SECONDS} s at one prompt, and could not be "
            f"interrupted, so the kernel ended the process ({note} says where): take another "
            "template (data.chat_template)"
        )


def _expired(number: int, frame: FrameType | None) -> None:
    raise TemplateTooGreedy(f"it runs for more than {SECONDS:g} s")
