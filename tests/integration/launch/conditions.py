"""Waiting for a condition instead of for a time."""

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 100.0, what: str = "") -> None:
    """Return once `condition()` is true; AssertionError after `within` seconds, by default more
    than any busy machine takes. Looking takes at most a fifth of the time: some conditions read
    about every process."""
    deadline = time.monotonic() + within
    between = threading.Event()
    while True:
        began = time.monotonic()
        if condition():
            return
        if began > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}")
        between.wait(min(1.0, max(0.02, 4 * (time.monotonic() - began))))
