"""cgroup v2: the kernel's limits on all processes of a program together.

The sandbox uses cgroups if the service's own cgroup is delegated to it: then only the service makes
cgroups below its own. A cgroup with limits for its children may hold no processes itself. So all
processes of the service move to a child, `service`. Each program gets a child for its lifetime.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from reward.sandbox.limits import WITH_CGROUP, Limits

SLACK_BYTES = 32 << 20
"""Memory beyond that of its processes: a program's copy of the interpreter, and what the kernel
keeps for it."""
_SERVICE = "service"
_PROGRAM = "program-"
_SERVICE_WEIGHT = 1000
"""The share of CPU time. Each program has the default of 100, however many processes it has."""
_NEEDED = {"memory", "pids"}
_numbers = itertools.count()


def delegated() -> Path | None:
    """Return the cgroup for the programs' cgroups. Return None if no cgroup is delegated. The first
    call moves all processes of the service to the child `service`."""
    try:
        group = _service_group()
        if group is None:
            return None
        if group.name == _SERVICE and _words(group.parent / "cgroup.subtree_control") >= _NEEDED:
            return group.parent
        if not (_is_ours(group) and _words(group / "cgroup.controllers") >= _NEEDED):
            return None
        _prepare(group)
    except OSError:
        return None
    return group


class ProgramGroup:
    """The cgroup of one program. Raises OSError if it cannot be made."""

    def __init__(self, parent: Path, limits: Limits) -> None:
        self._path = parent / f"{_PROGRAM}{os.getpid()}-{next(_numbers)}"
        self._path.mkdir()
        try:
            self._set("memory.max", limits.memory_bytes + SLACK_BYTES)
            # Kill the whole program if one of its processes is killed for memory: the others have
            # no use.
            self._set("memory.oom.group", 1)
            self._set("pids.max", WITH_CGROUP.processes)
            if (self._path / "memory.swap.max").exists():
                self._set("memory.swap.max", 0)
            self.entrance = os.open(self._path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            """A process that writes 0 there moves into this cgroup."""
        except OSError:
            self._path.rmdir()
            raise

    @property
    def seconds(self) -> float:
        """Return the CPU time of all processes that have been in this cgroup."""
        return _values(self._path / "cpu.stat")["usage_usec"] / 1e6

    @property
    def out_of_memory(self) -> bool:
        """Tell whether the kernel has killed processes of this cgroup because they took too much
        memory."""
        return _values(self._path / "memory.events")["oom_kill"] > 0

    def close(self) -> None:
        """Kill the processes in this cgroup, and remove it."""
        os.close(self.entrance)
        _remove(self._path)

    def _set(self, name: str, value: int) -> None:
        (self._path / name).write_text(str(value))


def remove_left_behind(parent: Path) -> None:
    """Remove the cgroups of programs whose worker was killed."""
    for path in parent.glob(f"{_PROGRAM}*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            _remove(path)


def _service_group() -> Path | None:
    """Return this process's cgroup, if this machine has one hierarchy for all controllers."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [line[3:] for line in lines if line.startswith("0::/")]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        root, mounted = fields.split()[3:5]
        if kind.startswith("cgroup2 ") and paths and root == "/":
            return Path(f"{mounted}{paths[0]}")
    return None


def _is_ours(group: Path) -> bool:
    """Tell whether only this service makes cgroups here. systemd marks the cgroups that it
    delegates."""
    writable = all(os.access(group / name, os.W_OK) for name in ("", "cgroup.procs"))
    if not writable or not os.path.exists("/run/systemd/system"):
        # This is a container's own cgroup, or one that a user has been given.
        return writable
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _prepare(group: Path) -> None:
    """Let the children of `group` limit memory, processes and CPU time."""
    # The hierarchy's root has no type, and may hold processes.
    if (group / "cgroup.type").exists():
        service = group / _SERVICE
        service.mkdir(exist_ok=True)
        # A process may be forked meanwhile.
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (service / "cgroup.procs").write_text(pid)
    wanted = {*_NEEDED, "cpu"} & _words(group / "cgroup.controllers")
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    with contextlib.suppress(OSError):
        (group / _SERVICE / "cpu.weight").write_text(str(_SERVICE_WEIGHT))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / "cgroup.kill").write_text("1")
    for _ in _attempts(1.0):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            # The processes are still ending.
            continue
        return


def _attempts(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.002)


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


def _values(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}
