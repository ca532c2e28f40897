"""Lets commands that clean up end alike on every signal that asks them to end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as SIGINT does: by KeyboardInterrupt."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # `nohup headrace …` ignores SIGHUP, and that is to stay so. SIGINT is taken in any case: a
    # script's background job inherits it ignored.
    kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if kept else (signal.SIGHUP,)))
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
