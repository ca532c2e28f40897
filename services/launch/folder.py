"""A data folder belongs to one `headrace up` at a time; it first ends what a killed one left."""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from services.launch.options import LaunchError
from services.logs import get_logger
from services.process import INSTANCE, kill_marked, kill_recorded, started_at

log = get_logger(__name__)


class DataFolder:
    """Holds the lock on a data folder from enter to exit; the kernel frees it if we are killed.

    `up.lock` is the lock and names the holder; a job of `deploy/slurm` takes it, too. `up.json`
    names the instance (a random id that every process of it carries in its environment) and the
    processes started, each by pid and start time: a process that lost its environment (setproctitle
    overwrites it) is still found by those.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.instance = secrets.token_hex(16)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LaunchError(
                f"the data folder {self.path} cannot be used: {error.strerror}; "
                "choose another with --data or HEADRACE_DATA"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _named_in(lock)
            os.close(lock)
            raise LaunchError(
                f"the data folder {self.path} is in use by {holder}: stop that one first, "
                "or choose another folder with --data"
            ) from None
        self._lock = lock
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            self._reap()
            self._write({})
        except (OSError, LaunchError) as error:
            self.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(
                f"nothing can be written to the data folder {self.path}: {error.strerror}; make "
                "room there, or choose another with --data or HEADRACE_DATA"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def marker(self) -> dict[str, str]:
        """What all processes of this instance carry in their environment."""
        return {INSTANCE: self.instance}

    def record(self, pids: Mapping[str, int]) -> None:
        """Note the processes that run now, by name, for whoever has to end them after us. Where the
        disk takes nothing, the note before stays: the instance that it names is still the right
        one, and all processes carry that."""
        try:
            self._write(pids)
        except OSError as error:
            log.warning("up.json cannot be written", reason=str(error))

    def _write(self, pids: Mapping[str, int]) -> None:
        processes = [
            {"name": name, "pid": pid, "start": start}
            for name, pid in pids.items()
            if (start := started_at(pid)) is not None
        ]
        state = {"instance": self.instance, "boot": _boot(), "processes": processes}
        temporary = self.path / "up.json.new"
        temporary.write_text(json.dumps(state) + "\n")
        os.replace(temporary, self.path / "up.json")

    def _reap(self) -> None:
        """End what the instance in up.json left. We hold the lock, so it has no owner."""
        try:
            state = json.loads((self.path / "up.json").read_text())
            instance = str(state["instance"])
            recorded = [(int(one["pid"]), int(one["start"])) for one in state["processes"]]
            boot = state["boot"]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            log.warning("up.json cannot be read, nothing to reap", error=repr(error))
            return
        killed, alive = kill_marked({INSTANCE: instance})
        if boot == _boot():
            killed += [pid for pid, start in recorded if kill_recorded(pid, start)]
        if killed:
            log.warning("ended processes that an earlier headrace up left", pids=killed)
        if alive:
            raise LaunchError(
                f"processes {', '.join(map(str, alive))}, left by an earlier headrace up, cannot "
                "be killed. The kernel holds them (a failed disk or GPU driver), "
                "and they would share this data folder, so nothing is started"
            )


def holder_of(path: Path) -> str | None:
    """Who holds the data folder `path`, in words; None where nobody does."""
    try:
        lock = os.open(path / "up.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named_in(lock)
    finally:
        os.close(lock)
    return None


def _named_in(lock: int) -> str:
    """A `headrace up`, which leaves its pid, or what else says that it is: a Slurm job."""
    said = os.pread(lock, 32, 0).decode(errors="replace").strip()
    return said if said and not said.isdigit() else f"a `headrace up` (pid {said or 'unknown'})"


def _boot() -> str:
    """This boot of this kernel: start times count from it, so they mean nothing under another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
