"""Backs up a whole installation, Redis and the data volume, into one file, and restores it.

The file is a tar archive: `store/N` (one `Dump` each), `data/…`, and at its end `backup.json`,
without which it is incomplete. A backup may run while everything works. Files of the volume never
change after their rename. They are hard-linked into a staging folder before Redis is read and again
afterwards, so every file that Redis names is in one of the two sets. Files that grow (metrics) are
copied.
"""

import json
import os
import shutil
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio.to_thread
import msgspec

from services.contracts.schema import require_schema
from services.recovery.recover import align
from services.runtime.file_lock import try_lock
from services.store import Store
from services.store.client import STATE_SCHEMA
from services.store.server.dumps import Dump
from services.volume import fsync

SCHEMA = 1
INDEX = "backup.json"
FOLDERS = ("datasets", "runs", "openai")
TOKENS = "tokens"
LOCK = ".lock"
"""A file in a staging folder, locked by the process that uses the folder."""
STAYS = frozenset({".safetensors", ".arrow", ".parquet", ".group"})
"""Files that are never written to after their rename."""

Say = Callable[[str], None]


class BackupError(Exception):
    """A backup cannot be made or used. The message says why, and the way out."""


@dataclass(frozen=True)
class Index:
    """The index of a backup."""

    id: str
    created: float
    runs: int
    datasets: int
    files: int
    bytes: int
    schema: int = SCHEMA
    """Schema of the backup file."""
    state: int = 1
    """Schema of the state in Redis."""


async def back_up(store: Store, data: Path, target: Path, say: Say) -> Index:
    """Write a backup of `store` and the volume `data` to `target`. An earlier file at `target`
    stays until the new one is whole. Raises BackupError, SchemaMismatch, OSError."""
    await store.check_schema()
    with _folder(data, ".backup-") as staged:
        await anyio.to_thread.run_sync(_link_all, data, staged / "data")
        runs = await _read_store(store, staged / "store")
        await anyio.to_thread.run_sync(_link_all, data, staged / "data")
        files = [path for path in (staged / "data").rglob("*") if path.is_file()]
        index = Index(
            id=uuid.uuid4().hex[:12],
            created=time.time(),
            runs=runs,
            datasets=len(await store.datasets.list()),
            files=len(files),
            bytes=sum(path.stat().st_size for path in files),
            state=STATE_SCHEMA,
        )
        (staged / INDEX).write_text(json.dumps(asdict(index), indent=2) + "\n")
        say(f"writing {index.bytes / 1e6:,.1f} MB in {index.files:,} files to {target}")
        await anyio.to_thread.run_sync(_pack, staged, target)
        return index


async def _read_store(store: Store, folder: Path) -> int:
    """Write the store's content into `folder`. Returns the number of runs."""
    folder.mkdir()
    runs = number = 0
    async for part in store.dumps.read():
        (folder / f"{number:06d}").write_bytes(msgspec.msgpack.encode(part))
        number += 1
        runs += part.of == "run"
    return runs


async def restore(store: Store, data: Path, source: Path, say: Say) -> Index:
    """Restore a backup into an empty store and an empty volume. The same call again continues an
    interrupted restore. Raises BackupError, SchemaMismatch, NotEmpty, ForeignDump."""
    data.mkdir(parents=True, exist_ok=True)
    with _folder(data, ".restore-") as staged:
        say(f"reading {source}")
        index = await anyio.to_thread.run_sync(_unpack, source, staged)
        require_schema(f"the state in {source}", index.state, STATE_SCHEMA)
        await store.check_schema()
        await store.dumps.begin(index.id)
        await anyio.to_thread.run_sync(_move_in, staged / "data", data, index.id)
        # Pools were read first, and are written last. One part at a time: a run may be gigabytes.
        for file in sorted((staged / "store").iterdir(), reverse=True):
            part = msgspec.msgpack.decode(file.read_bytes(), type=Dump)
            await store.dumps.write(part)
        await store.dumps.end()
        await align(store, data)
        (data / f".restored-{index.id}").unlink(missing_ok=True)
    return index


@contextmanager
def _folder(data: Path, prefix: str) -> Iterator[Path]:
    """Yield a staging folder on the volume. Deletes folders of killed processes, whose locks the
    kernel has freed."""
    if not data.is_dir():
        raise BackupError(f"the data folder {data} does not exist: name it with --data")
    for leftover in data.glob(f"{prefix}*"):
        with _locked(leftover) as ours:
            if ours:
                shutil.rmtree(leftover, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=data))
        try:
            with _locked(folder) as ours:
                # Another process may have taken it for an abandoned folder.
                if ours and (folder / LOCK).exists():
                    yield folder
                    return
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a staging folder's lock; yield whether it was free. A file system without locks counts
    as free."""
    try:
        file = (folder / LOCK).open("a")
    except OSError:
        yield True
        return
    with file:
        try:
            ours = try_lock(file)
        except OSError:
            ours = True
        yield ours


def _link_all(data: Path, staged: Path) -> None:
    """Link or copy every file of the volume into `staged`, except unfinished ones (`.name`)."""
    staged.mkdir(exist_ok=True)
    for folder in FOLDERS:
        for root, below, files in os.walk(data / folder):
            # The cache of tokenized rows is rebuilt if it is missing.
            below[:] = [name for name in below if not name.startswith(".") and name != TOKENS]
            there = staged / Path(root).relative_to(data)
            there.mkdir(parents=True, exist_ok=True)
            for name in files:
                if not name.startswith("."):
                    _bring(Path(root) / name, there / name)


def _bring(file: Path, to: Path) -> None:
    try:
        if file.suffix not in STAYS:
            shutil.copy2(file, to)
        elif not to.exists():
            os.link(file, to)
    except FileNotFoundError:
        return  # deleted meanwhile: nobody needs it any more
    except OSError as error:
        if to.exists():
            raise
        # The volume has no hard links.
        try:
            shutil.copy2(file, to)
        except OSError:
            raise error from None


def _pack(staged: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.partial")
    try:
        # A reader of the file can read every prompt and answer.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name in ("store", "data", INDEX):
                    archive.add(staged / name, name)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
        fsync(target.parent)
    finally:
        beside.unlink(missing_ok=True)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract the archive's files and folders into `folder`. Raises TarError, ValueError for any
    other member. Not `extractall`: Debian 12's Python (3.11.2) lacks its filters."""
    for member in archive:
        to = (folder / member.name).resolve()
        if not to.is_relative_to(folder.resolve()):
            raise ValueError(f"{member.name!r} leads out of it")
        if not (member.isfile() or member.isdir()):
            raise ValueError(f"{member.name!r} is neither a file nor a folder")
        if member.isdir():
            to.mkdir(parents=True, exist_ok=True)
            continue
        content = archive.extractfile(member)
        assert content is not None, "it is a file"
        with content, to.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        to.chmod(member.mode & 0o755 | 0o600)


def _unpack(source: Path, staged: Path) -> Index:
    try:
        with tarfile.open(source, mode="r:") as archive:
            _extract(archive, staged)
        index = Index(**json.loads((staged / INDEX).read_text()))
    except FileNotFoundError as error:
        if not source.exists():
            raise BackupError(f"there is no file {source}") from None
        missing = Path(error.filename).name
        raise BackupError(f"{source} is no whole backup: {missing} is missing") from None
    except IsADirectoryError:
        raise BackupError(f"{source} is a folder: name the file of a backup") from None
    except (tarfile.TarError, ValueError, TypeError, EOFError) as error:
        raise BackupError(f"{source} is no whole backup: {error}") from None
    require_schema(f"the backup {source}", index.schema, SCHEMA)
    member_index = sum(path.is_file() for path in (staged / "data").rglob("*"))
    if member_index != index.files:
        raise BackupError(
            f"{source} is no whole backup: {member_index} of {index.files} files are there"
        )
    return index


def _move_in(staged: Path, data: Path, id: str) -> None:
    """Move the volume's folders to their places. Raises BackupError for existing folders that no
    earlier attempt at the same backup has written."""
    mark = data / f".restored-{id}"
    for folder in FOLDERS:
        place = data / folder
        if place.is_dir() and any(place.iterdir()) and not mark.exists():
            raise BackupError(f"{place} is not empty; a backup goes into an empty data folder")
    mark.touch()
    for folder in FOLDERS:
        if (staged / folder).is_dir():
            shutil.rmtree(data / folder, ignore_errors=True)
            (staged / folder).rename(data / folder)
    # Thousands of small files: one sync of all is quicker.
    os.sync()
