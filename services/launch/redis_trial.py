"""Redis' append-only files after a fault: `headrace recover` tries them on a copy of their folder.

Redis judges its own files: it starts on the copy, or names the damage. The folder itself stays as
it is until the user has agreed to the loss; then the copy takes its place.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from services.launch.data_folder import AGREED, COPY, REDIS
from services.launch.options import UpOptions
from services.launch.redis import bundled_server
from services.launch.stack import Stack
from services.launch.unreadable_redis import UnreadableRedis

MANIFEST = Path("appendonlydir", "appendonly.aof.manifest")
"""The list of Redis' files, since Redis 7."""


class Trial(NamedTuple):
    url: str
    lost: str
    """A sentence on what its files have lost; '' if Redis has read them whole."""


@contextlib.contextmanager
def redis_on_a_copy(data: Path) -> Iterator[Trial]:
    """Run Redis on a copy of the folder `data`/redis. Delete the copy if the block raises. The
    caller holds the `DataFolder`.

    Redis cuts a half-written last command by itself. At other damage, the copy keeps the
    commands before it; if Redis cannot read its snapshot either, the copy begins empty. Raises
    LaunchError if Redis does not start for another reason, OSError if the disk is too full.
    """
    beside = data / COPY
    folder = beside / REDIS
    try:
        beside.mkdir(mode=0o700)
        unread = _copy(data / REDIS, folder) if (data / REDIS).is_dir() else []
        with contextlib.ExitStack() as stack:
            url, lost = "", "; ".join(unread)
            if _has_snapshot(folder):
                url = _start(stack, beside)
                if not url and (cut := _cut_at_damage(folder)):
                    lost = "; ".join([*unread, cut])
                    url = _start(stack, beside)
            if not url:
                _empty(folder)
                lost = "Redis' files cannot be read: Redis begins empty"
                url = _start(stack, beside)
            yield Trial(url, lost)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def discard_copy(data: Path) -> None:
    shutil.rmtree(data / COPY)


def use_copy(data: Path) -> Path | None:
    """Put the copy of an ended trial in the folder's place. Return where the folder is kept, or
    None if there was no folder. Raises OSError, with the folder in its old place."""
    # A power cut must not leave names of files whose contents are not on the disk yet.
    os.sync()
    (data / COPY).rename(data / AGREED)
    kept = None
    try:
        if (data / REDIS).exists():
            kept = data / f"{REDIS}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
            (data / REDIS).rename(kept)
        (data / AGREED / REDIS).rename(data / REDIS)
    except OSError:
        if kept is not None and kept.exists():
            kept.rename(data / REDIS)
        (data / AGREED).rename(data / COPY)
        raise
    os.sync()
    shutil.rmtree(data / AGREED)
    return kept


def increments(folder: Path) -> list[Path]:
    """Return the files of commands of the Redis in `folder`, oldest first: one (Redis 6), or those
    that the manifest names (Redis 7, Valkey)."""
    if not (folder / MANIFEST).exists():
        single = folder / "appendonly.aof"
        return [single] if single.exists() else []
    return _named(folder, "i")


def _named(folder: Path, kind: str) -> list[Path]:
    """Return the files of a kind that the manifest names and that exist: b (base), i (incremental)
    or h (not used any more). A damaged manifest may name other folders."""
    manifest = folder / MANIFEST
    words = [line.split() for line in manifest.read_text(errors="replace").splitlines()]
    # file NAME seq NUMBER type KIND
    names = [line[1] for line in words if len(line) >= 6 and line[5] == kind]
    paths = [manifest.parent / name for name in names if name == Path(name).name]
    return [path for path in paths if path.exists()]


def _has_snapshot(folder: Path) -> bool:
    """Whether the commands have a snapshot to be applied to. If the snapshot is empty, or the
    manifest names none, Redis begins with no record and applies the commands: records would be
    halves. A base that consists of commands, from Redis 6, may be empty."""
    if not (folder / MANIFEST).exists():
        return True
    return any(path.suffix != ".rdb" or path.stat().st_size for path in _named(folder, "b"))


def _copy(folder: Path, target: Path) -> list[str]:
    """Copy Redis' folder, and of a file with a bad sector what lies before it. Return a sentence
    for each such file. Raises OSError."""
    unread: list[str] = []
    failures: list[OSError] = []

    def copy(source: str, copied: str) -> None:
        with open(copied, "wb") as output:
            try:
                with open(source, "rb") as file:
                    shutil.copyfileobj(file, output)
            except OSError as error:
                if error.errno != errno.EIO:
                    failures.append(error)
                    raise
                unread.append(
                    f"Redis' file {Path(source).name} cannot be read: {error.strerror} after "
                    f"{output.tell():,} bytes"
                )
        shutil.copymode(source, copied)

    try:
        shutil.copytree(
            folder, target, ignore=_sockets, copy_function=copy, ignore_dangling_symlinks=True
        )
    except shutil.Error:
        # Its text is a list of all files.
        if not failures:
            raise
        raise failures[0] from None
    return unread


def _start(stack: contextlib.ExitStack, data: Path) -> str:
    """Start Redis in `data`. Return its URL, or '' if it cannot read its files."""
    options = UpOptions(data=data, parts=frozenset({REDIS}), start_tries=1)
    try:
        return stack.enter_context(Stack(options)).redis_url
    except UnreadableRedis:
        return ""


def _cut_at_damage(folder: Path) -> str:
    """Cut the first damaged increment before its damage, and empty those after it. Return what was
    cut, or '' if no increment is damaged. The snapshot is left alone: Valkey's own checker takes
    the snapshots of Valkey 9 for damaged."""
    cut: list[str] = []
    for path in increments(folder):
        size = path.stat().st_size
        if not cut:
            _fix(path)
            left = path.stat().st_size
        else:
            path.write_bytes(b"")
            left = 0
        if left < size:
            cut.append(f"Redis' file {path.name} is damaged: {left:,} of {size:,} bytes are kept")
    return "; ".join(cut)


def _fix(path: Path) -> None:
    # The server's binary is the checker, too, under that name.
    subprocess.run(
        ["redis-check-aof", "--fix", str(path)],
        executable=bundled_server(),
        input="y\n",
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )


def _empty(folder: Path) -> None:
    (folder / "appendonly.aof").unlink(missing_ok=True)
    shutil.rmtree(folder / "appendonlydir", ignore_errors=True)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]
