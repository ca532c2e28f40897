"""Checksums of files on the data volume, and atomic writes."""

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import xxhash

from services.contracts.weights import WeightFile, part_bytes

CHUNK = 1 << 22
"""Bytes that are read at a time; divides the size of a part."""

REDIS_RESERVE = 16 << 20
"""Free bytes that Redis needs for its next write, if it is on the volume. Without them it ends."""
DATA_RESERVE = 64 << 20
"""Bytes of the volume that no run's write may use. Redis may be on the same volume: without free
space it ends, and with it the run's status, which tells the user why."""


class DamagedFile(ValueError):
    """A file's size or checksum differs from its manifest."""


def checksum(path: Path, stop: threading.Event | None = None) -> str:
    """Return the xxh3 (64 bit, hex) of a file, read in 4 MiB pieces. Once `stop` is set, the rest
    of the file is skipped."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while (chunk := file.read(CHUNK)) and not (stop and stop.is_set()):
            digest.update(chunk)
    return digest.hexdigest()


def weight_file(path: Path, name: str) -> WeightFile:
    """Return the manifest's entry for the file at `path` that will be called `name`. Reads it
    once."""
    size = path.stat().st_size
    length = part_bytes(size)
    whole, parts = xxhash.xxh3_64(), []
    with path.open("rb") as file:
        for start in range(0, size, length):
            part = xxhash.xxh3_64()
            for _ in range(start, min(start + length, size), CHUNK):
                chunk = file.read(CHUNK)
                whole.update(chunk)
                part.update(chunk)
            parts.append(part.hexdigest())
    return WeightFile(name, size, whole.hexdigest(), parts)


def check_file(
    path: Path,
    size: int | None,
    xxh3: str | None,
    name: str = "",
    stop: threading.Event | None = None,
) -> None:
    """Raise DamagedFile unless `path` has this size and checksum (None: not checked). Errors call
    it `name`. Once `stop` is set the outcome means nothing."""
    name = name or path.name
    if size is not None and (actual := path.stat().st_size) != size:
        raise DamagedFile(f"{name} has {actual} bytes, its manifest says {size}")
    if xxh3 is not None and (digest := checksum(path, stop)) != xxh3:
        raise DamagedFile(f"{name} has checksum {digest}, its manifest says {xxh3}")


async def checked(path: Path, size: int | None, xxh3: str | None, name: str = "") -> None:
    """Run `check_file` in a thread, which ends soon after its caller is cancelled."""
    stop = threading.Event()
    try:
        await anyio.to_thread.run_sync(
            check_file, path, size, xxh3, name, stop, abandon_on_cancel=True
        )
    finally:
        stop.set()


def opened_by_umask(path: Path) -> None:
    """Give a file the default mode of this process. mkstemp and safetensors make files for their
    own user alone, which is right in the data folder, and wrong for an exported model."""
    # The call `umask` can only read the mask by setting it.
    mask = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.M)
    path.chmod(0o666 & ~(int(mask[1], 8) if mask else 0o077))


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that becomes `path` if the block succeeds.

    The file and its folder are fsynced, so after the rename the whole file exists, even after a
    power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    beside = Path(temporary)
    try:
        yield beside
        fsync(beside)
        opened_by_umask(beside)
        beside.rename(path)
        fsync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
