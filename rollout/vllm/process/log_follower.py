"""Passes on what vLLM writes to its log, line by line, while it runs and once it has ended."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rollout.vllm.process.logs import is_routine, leveled
from services.runtime.log_lines import LogLines

OUTPUT = logging.getLogger("headrace.vllm-output")
"""Its lines do not go to stderr: vLLM's file has them."""
OUTPUT.propagate = False
OUTPUT.setLevel(logging.DEBUG)
EVERY_SECONDS = 1.0
AT_ONCE = 1 << 18
"""Bytes that are read at once. If there are more, only the newest are read."""


def pass_on_to(lines: LogLines) -> None:
    """Pass vLLM's lines to `lines` from now on."""
    OUTPUT.addHandler(lines)


async def follow(path: Path, process: str, has_ended: Callable[[], bool]) -> None:
    """Pass on each line of the file `path` as a line of `process`, until the writer has ended and
    all is read."""
    place, level = 0, logging.INFO
    while True:
        is_last = has_ended()
        text, place = await asyncio.to_thread(_read, path, place, is_last)
        for raw in text.split("\n"):
            # Progress bars write over their line.
            line = raw.rsplit("\r", 1)[-1].rstrip()
            if line and not is_routine(line):
                level, shown = leveled(line, level)
                OUTPUT.log(level, "%s", shown, extra={"source": process})
        if is_last:
            return
        await asyncio.sleep(EVERY_SECONDS)


def _read(path: Path, place: int, is_last: bool) -> tuple[str, int]:
    """Return the whole lines from `place` on, and the place behind them. `is_last`: a line without
    an end counts too."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(place, size - AT_ONCE))
            begin = file.tell()
            content = file.read()
    except OSError:
        return "", place
    end = len(content) if is_last else content.rfind(b"\n") + 1
    return content[:end].decode(errors="replace"), begin + end
