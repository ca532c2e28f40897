"""Programs for the sandbox's tests, and what they use as the rest of the machine sees it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import ProgramEnding
from reward.sandbox.sandbox_host import ProgramTask, Sandbox
from tests.integration.reward.conftest import alive

MEMORY = 192 << 20
HIDE_LIBSECCOMP = """
for one in /lib/*/libseccomp.so.2* /usr/lib/*/libseccomp.so.2* /usr/lib64/libseccomp.so.2*; do
    [ -f "$one" ] && mount --bind /dev/null "$one"
done
exec "$@"
"""


def run(
    sandbox: Sandbox, source: str, seconds: float = 5.0, wall: float = 0.0, memory: int = MEMORY
) -> ProgramEnding:
    """Run `source` with `seconds` of CPU time, and return its ending."""
    limits = Limits(seconds, wall or 2 * seconds + 1, memory)
    (ending,) = sandbox.run([ProgramTask({"kind": "script", "source": source})], limits)
    return ending


def below(pid: int) -> Iterator[int]:
    """All living processes below `pid`."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in filter(alive, map(int, (task / "children").read_text().split())):
                yield child
                yield from below(child)


class Peak:
    """The most memory that a sandbox's programs, and the machine's shared mappings, have held since
    the `with` began, measured 200 times a second."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.bytes = 0
        self._sandbox = sandbox
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _measure(self) -> None:
        shared = _shared()
        while not self._end.is_set():
            held = sum(map(_anonymous, below(self._sandbox._zygote.pid)))
            self.bytes = max(self.bytes, held + _shared() - shared)
            time.sleep(0.005)


def _shared() -> int:
    """Bytes of shared mappings and files in memory, of the whole machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


def _anonymous(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))
    return 0
