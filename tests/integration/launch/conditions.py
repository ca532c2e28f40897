"""Waiting for a condition instead of for a time."""

import threading
import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 20.0, what: str = "") -> None:
    """Return once `condition()` is true; AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    between = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or condition}")
        between.wait(0.02)
