"""What Redis has written to its append-only files, so that a change of these files is noticed.

Redis has no checksum over the commands in these files. It starts without a word on a file that was
cut, and on one whose values were changed. So `headrace up` reads what Redis appends, and keeps a
checksum of each block in `redis/written.json`. At the next start the blocks must be the same.

Only what Redis has fsynced is recorded: it answers a ping after it has finished what it wrote
before, and nothing is read while it starts. So neither a power cut nor a kill can make a recorded
block disappear.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import redis.asyncio
import redis.exceptions
import xxhash

from services.launch.options import LaunchError
from services.launch.redis import find_server, servers_here
from services.runtime.logs import get_logger

log = get_logger(__name__)

BLOCK, HEAD = 1 << 20, 1 << 12
EVERY = 1.0
RECORD = "written.json"
UNREADABLE = ("reading the append only file", "reading or opening the append", "loading DB", "CRC")
"""In the log of Redis 6.2 to 7, before it ends because of its files."""
CHECKED = ("is valid", "is not valid", "truncated", "RDB", "analyzed")
"""Of what the checker says of a file that it has read."""
NEWER = "RDB format version"
"""There, too, where a newer server has written them: nothing is damaged."""
WAY_OUT = (
    "Put back the folder's files or a backup (`headrace restore`), or accept the loss: `headrace "
    "recover` keeps what is whole and says what is lost"
)


class Written(msgspec.Struct, frozen=True):
    """A file as far as it was read."""

    bytes: int
    head: str
    """xxh3 of its first 4 KiB."""
    blocks: list[str]
    """xxh3 (64 bit, hex) of each BLOCK; the last one may be shorter."""


class Record(msgspec.Struct, frozen=True):
    """The content of `written.json`."""

    time: float
    """Unix seconds of the last look."""
    files: dict[str, Written]
    """By path relative to Redis' folder."""


@dataclass(frozen=True)
class Damage:
    """A file that is not what Redis has written."""

    path: Path
    whole: int
    """Bytes at its beginning that are as they were written."""
    words: str


class Reader:
    """Reads one file as it grows."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb")
        self.inode = os.fstat(self._file.fileno()).st_ino
        self._bytes, self._blocks = 0, [""]
        self._head, self._last = xxhash.xxh3_64(), xxhash.xxh3_64()

    def read(self, limit: float = float("inf")) -> Written:
        """Read what is there, up to `limit` bytes in all. Raises OSError."""
        while True:
            wanted = int(min(BLOCK - self._bytes % BLOCK, limit - self._bytes))
            if wanted <= 0 or not (chunk := self._file.read(wanted)):
                break
            self._head.update(chunk[: max(0, HEAD - self._bytes)])
            self._last.update(chunk)
            self._bytes += len(chunk)
            self._blocks[-1] = self._last.hexdigest()
            if self._bytes % BLOCK == 0:
                self._blocks.append("")
                self._last.reset()
        blocks = [block for block in self._blocks if block]
        return Written(self._bytes, self._head.hexdigest(), blocks)

    def close(self) -> None:
        self._file.close()


def files(folder: Path) -> list[Path]:
    """The append-only files of the Redis in `folder`: one (Redis 6), or those that the manifest
    names (Redis 7)."""
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    if not manifest.exists():
        single = folder / "appendonly.aof"
        return [single] if single.exists() else []
    words = [line.split() for line in manifest.read_text(errors="replace").splitlines()]
    # file NAME seq NUMBER type b (base), i (incremental) or h (not used any more)
    names = [line[1] for line in words if len(line) >= 6 and line[5] != "h"]
    return [path for name in names if (path := manifest.with_name(name)).exists()]


def damage(folder: Path) -> Damage | None:
    """The first file that is not what was recorded. Reads all of them. A file that Redis has
    written anew since the last record begins with another block, and is not compared."""
    try:
        record = msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the record of Redis' files cannot be read", reason=str(error))
        return None
    for path in files(folder):
        name = str(path.relative_to(folder))
        if (written := record.files.get(name)) is None:
            continue
        reader = Reader(path)
        found = reader.read(written.bytes)
        reader.close()
        if found.head != written.head and _begins_as_snapshot(path):
            # Redis has written it anew since, and has a checksum over such a beginning.
            continue
        if found == written:
            continue
        # Of a shorter file the last block cannot be compared.
        compared = found.blocks[: found.bytes // BLOCK if found.bytes < written.bytes else None]
        pairs = enumerate(zip(compared, written.blocks, strict=False))
        changed = next((number for number, (a, b) in pairs if a != b), None)
        at = datetime.fromtimestamp(record.time, UTC).isoformat(" ", "seconds")
        if changed is None:
            words = f"has {found.bytes:,} bytes, and had {written.bytes:,} at {at}"
            return Damage(path, found.bytes, f"Redis' file {path} {words}")
        whole = changed * BLOCK
        words = f"is not what Redis has written, from byte {whole:,} on (checked until {at})"
        return Damage(path, whole, f"Redis' file {path} {words}")
    return None


def _begins_as_snapshot(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6).startswith((b"REDIS", b"VALKEY"))


def check(folder: Path) -> None:
    """Raise LaunchError if a file is not what Redis has written."""
    if found := damage(folder):
        raise LaunchError(
            f"{found.words}: acknowledged writes are lost or changed, and Redis is not started on "
            f"it. {WAY_OUT}"
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Name the way out where Redis does not start on its files."""
    try:
        yield
    except LaunchError as error:
        if NEWER not in str(error) and any(words in str(error) for words in UNREADABLE):
            raise LaunchError(f"{error}\nRedis cannot read its files. {WAY_OUT}") from None
        raise


async def watch(folder: Path, url: str) -> None:
    """Record what Redis writes, until cancelled."""
    client = redis.asyncio.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    readers: dict[Path, Reader] = {}
    before: dict[str, Written] = {}
    known: str | None = None
    try:
        while True:
            with contextlib.suppress(OSError):
                server = await _server(client)
                if server is not None and server != known:
                    # As it starts, a Redis cuts off a command that was half written: what was read
                    # of its files before does not hold.
                    _close(readers)
                    known = server
                if server is not None:
                    read = await asyncio.to_thread(_read, folder, readers)
                    if read != before and await _server(client) == server:
                        await asyncio.to_thread(_write, folder, Record(time.time(), read))
                        before = read
            await asyncio.sleep(EVERY)
    finally:
        _close(readers)
        await client.aclose()


async def _server(client: redis.asyncio.Redis) -> str | None:
    """The id of the Redis that runs, another one after each start, once it has finished what it
    wrote before; None while it does not answer, or loads its files."""
    try:
        found = await client.info("server")
        await client.ping()
    except redis.exceptions.RedisError:
        return None
    return str(found["run_id"])


def _close(readers: dict[Path, Reader]) -> None:
    while readers:
        readers.popitem()[1].close()


def _read(folder: Path, readers: dict[Path, Reader]) -> dict[str, Written]:
    now = files(folder)
    for path in [*readers]:
        if path not in now or readers[path].inode != path.stat().st_ino:
            readers.pop(path).close()
    for path in now:
        if path not in readers:
            readers[path] = Reader(path)
    return {str(path.relative_to(folder)): readers[path].read() for path in now}


def _write(folder: Path, record: Record) -> None:
    beside = folder / f"{RECORD}.new"
    beside.write_bytes(msgspec.json.encode(record))
    os.replace(beside, folder / RECORD)


class Mended(NamedTuple):
    """What became of Redis' files."""

    lost: str
    """In words."""
    kept: Path
    """A folder with all of them as they were."""


def put_back(folder: Path, mended: Mended) -> None:
    """Have Redis' files as they were before they were mended. Raises OSError."""
    shutil.rmtree(folder)
    mended.kept.rename(folder)


def mend(folder: Path) -> Mended | None:
    """Keep of Redis' files what is whole, and all of them as they were in a folder beside. None if
    nothing is known to be lost. Raises LaunchError, OSError."""
    found = damage(folder)
    kept = folder.with_name(f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    shutil.copytree(folder, kept, ignore=_sockets)
    if found is not None:
        os.truncate(found.path, found.whole)
    (folder / RECORD).unlink(missing_ok=True)
    lost = [found.words] if found else []
    for path in files(folder):
        size = path.stat().st_size
        if not _can_be_read(path):
            _empty(folder)
            lost.append("nothing of Redis' files could be read, and Redis begins empty")
            break
        if (left := path.stat().st_size) < size:
            lost.append(f"{path.name} was cut to {left:,} of {size:,} bytes, which are whole")
    if not lost:
        shutil.rmtree(kept)
        return None
    return Mended(f"{'; '.join(lost)}. The files as they were are in {kept}", kept)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def _can_be_read(path: Path) -> bool:
    """Whether a file can be read, after it was cut to its last whole command."""
    server = find_server(servers_here())
    # The server's binary is the checker, too, under that name.
    done = subprocess.run(
        ["redis-check-aof", "--fix", str(path)],
        executable=server,
        input="y\n",
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
    )
    # Anything else it says is not about the file, which must not be thrown away for it.
    if not any(words in done.stdout for words in CHECKED):
        raise LaunchError(f"{path} cannot be checked: {(done.stdout + done.stderr)[-200:]}")
    if NEWER in (said := done.stdout + done.stderr):
        raise LaunchError(f"{path} was written by a newer server than {server}: {said[-200:]}")
    return done.returncode == 0


def _empty(folder: Path) -> None:
    for path in files(folder):
        path.unlink()
    shutil.rmtree(folder / "appendonlydir", ignore_errors=True)
