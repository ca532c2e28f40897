"""A data folder belongs to one `headrace up` at a time, which first ends what a killed one left."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from services.launch.options import LaunchError
from services.runtime.logs import get_logger
from services.runtime.process import INSTANCE, kill_marked

log = get_logger(__name__)


LOCK, NAMED = "up.lock", "up.json"
"""The lock, which names its holder, and the file that names the instance."""
REDIS = "redis"
COPY = "redis.recovering"
"""The data folder in which `headrace recover` tries a copy of Redis' files (`redis_trial`)."""
AGREED = "redis.recovered"
"""The copy of Redis' files that takes their place, once the user has agreed (`redis_trial`)."""


class DataFolder:
    """Holds the lock on a data folder from enter to exit; the kernel frees it if we are killed.

    `up.lock` is the lock and names the holder; a job of `deploy/slurm` takes it, too. `up.json`
    names the instance: a random id in the environment of all its processes. By this id the next
    holder finds processes that outlived their supervisor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.instance = secrets.token_hex(16)
        self._lock: int | None = None
        self._is_new = False

    def __enter__(self) -> Self:
        self._is_new = not self.path.exists()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _close_to_others(self.path)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LaunchError(
                f"the data folder {self.path} cannot be used: {error.strerror}; "
                "choose another with --data or HEADRACE_DATA"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = lock
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            self._end_processes_left()
            finish_swap(self.path)
            temporary = self.path / "up.json.new"
            temporary.write_text(json.dumps({"instance": self.instance}) + "\n")
            os.replace(temporary, self.path / NAMED)
        except BlockingIOError:
            holder = _named_in(lock)
            os.close(lock)
            raise LaunchError(
                f"the data folder {self.path} is in use by {holder}: stop that one first, "
                "or choose another folder with --data"
            ) from None
        except OSError as error:
            os.close(lock)
            raise LaunchError(
                f"nothing can be written to the data folder {self.path}: {error.strerror}; make "
                "room there, or choose another with --data or HEADRACE_DATA"
            ) from error
        except LaunchError:
            os.close(lock)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._is_new:
            self._remove_unused()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_unused(self) -> None:
        """Remove the folder if it holds only its lock and an empty folder for Redis. A start that
        was refused leaves nothing behind."""
        with contextlib.suppress(OSError):
            (self.path / REDIS).rmdir()
        with contextlib.suppress(OSError):
            if {file.name for file in self.path.iterdir()} == {LOCK, NAMED}:
                for name in (LOCK, NAMED):
                    (self.path / name).unlink()
                self.path.rmdir()

    @property
    def marker(self) -> dict[str, str]:
        """The variable that marks all processes of this instance."""
        return {INSTANCE: self.instance}

    def _end_processes_left(self) -> None:
        """Kill the processes that the instance in up.json left. This process holds the lock, so
        that instance has no supervisor. Raises LaunchError if a process cannot be killed."""
        try:
            instance = str(json.loads((self.path / NAMED).read_text())["instance"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            log.warning("up.json cannot be read: no process is looked for", error=repr(error))
            return
        killed, alive = kill_marked({INSTANCE: instance})
        if killed:
            log.warning("ended processes that an earlier headrace up left", pids=killed)
        if alive:
            raise LaunchError(
                f"processes {', '.join(map(str, alive))}, left by an earlier headrace up, cannot "
                "be killed. The kernel holds them (a failed disk or GPU driver), "
                "and they would share this data folder, so nothing is started"
            )


def _close_to_others(path: Path) -> None:
    """Close the folder `path` to other users, which protects its files too. Log a warning if this
    user may not change the folder."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    with contextlib.suppress(PermissionError):
        if mode & 0o077:
            path.chmod(mode & ~0o077)
            log.warning("the data folder was open to other users and is closed now", data=str(path))
            mode &= ~0o077
    if mode & 0o077 or status.st_uid != os.geteuid():
        log.warning(
            "another user can enter the data folder, with keys, prompts and checkpoints: make it "
            "yours, and close it with chmod go=",
            data=str(path),
            owner=status.st_uid,
        )


def holder_of(path: Path) -> str | None:
    """Describe the holder of the data folder `path`; None if nobody holds it."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
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
    """Describe the holder in the lock: the pid of a `headrace up`, or a Slurm job in its own
    words."""
    holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
    named = holder and not holder.isdigit()
    return holder if named else f"a `headrace up` (pid {holder or 'unknown'})"


def finish_swap(data: Path) -> None:
    """Finish a `use_copy` that was killed between its steps, and delete what a killed trial has
    left. Raises OSError."""
    if (data / AGREED / REDIS).exists() and not (data / REDIS).exists():
        (data / AGREED / REDIS).rename(data / REDIS)
    for folder in (AGREED, COPY):
        shutil.rmtree(data / folder, ignore_errors=True)
