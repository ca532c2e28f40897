"""The checkpoints of a run on the data volume: which there are, which are pinned, and one as a tar
stream. A pinned checkpoint is never deleted while its run exists.

`runs/RUN/checkpoints/pinned-NAME` marks the checkpoint NAME as pinned: an empty file.
"""

import os
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from services.volume.checkpoint import NAME
from services.volume.files import fsync

PINNED = "pinned-"
PIECE = 1 << 20
END = 2 * tarfile.BLOCKSIZE
"""Zeros at the end of an archive."""


class KeptCheckpoint(NamedTuple):
    """A whole checkpoint of a run."""

    step: int
    folder: Path
    bytes: int
    created: float
    """When it was written, in Unix seconds."""
    is_pinned: bool


def kept_checkpoints(folder: Path) -> list[KeptCheckpoint]:
    """Return the checkpoints in the `folder` of a run, the newest step first. Several
    checkpoints of a step come in the order of their writing, the last one first."""
    pinned = pinned_names(folder)
    checkpoints = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            checkpoints.append(
                KeptCheckpoint(int(match[1]), path, size, path.stat().st_mtime, path.name in pinned)
            )
        except FileNotFoundError:
            # Its learner has deleted it meanwhile.
            continue
    return sorted(checkpoints, key=lambda each: (each.step, each.created), reverse=True)


def pinned_names(folder: Path) -> set[str]:
    """Return the names of the pinned checkpoints in the `folder` of a run."""
    return {path.name.removeprefix(PINNED) for path in folder.glob(f"{PINNED}*")}


def pin(checkpoint: Path, is_pinned: bool) -> None:
    """Pin a checkpoint, or take the pin away. Raises OSError; FileNotFoundError if the checkpoint
    was deleted before it was pinned."""
    mark = checkpoint.with_name(f"{PINNED}{checkpoint.name}")
    if not is_pinned:
        mark.unlink(missing_ok=True)
        return
    mark.touch()
    fsync(checkpoint.parent)
    if not checkpoint.is_dir():
        mark.unlink(missing_ok=True)
        raise FileNotFoundError(checkpoint)


def hide(checkpoint: Path, hidden: str) -> Path | None:
    """Give a checkpoint that is to be deleted the name `hidden`: readers see it whole or not at
    all. Return its new place. Return None if it is pinned: it stays. Raises OSError."""
    place = checkpoint.rename(checkpoint.with_name(hidden))
    # A pin that comes later finds no checkpoint, and is refused.
    if checkpoint.with_name(f"{PINNED}{checkpoint.name}").exists():
        place.rename(checkpoint)
        return None
    return place


class TarStream:
    """A folder as a tar archive, which is read piece by piece. The files are open from the start,
    so a folder that is deleted meanwhile is still sent whole. Links and special files stay out.
    Raises OSError."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name`: the folder in the archive."""
        self._files: list[tuple[bytes, int, BinaryIO]] = []
        self._open = ExitStack()
        try:
            for path in sorted(folder.rglob("*")):
                if path.is_symlink() or not path.is_file():
                    continue
                file = self._open.enter_context(path.open("rb"))
                about = os.fstat(file.fileno())
                member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
                member.size, member.mtime, member.mode = about.st_size, int(about.st_mtime), 0o644
                head = member.tobuf(tarfile.PAX_FORMAT)
                self._files.append((head, about.st_size, file))
        except BaseException:
            self._open.close()
            raise
        self.bytes = END + sum(len(head) + _padded(size) for head, size, _ in self._files)

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive, and close the files."""
        with self._open:
            for head, size, file in self._files:
                yield head
                left = size
                while left and (piece := file.read(min(PIECE, left))):
                    left -= len(piece)
                    yield piece
                if left:
                    raise OSError(f"{file.name} became shorter while it was sent")
                yield bytes(_padded(size) - size)
            yield bytes(END)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
