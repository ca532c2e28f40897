"""Files that arrive in parts, on the data volume. A broken upload continues after its last byte.

The bytes and a description lie in the folder of unpublished segments. Both are deleted a day after
the last part.
"""

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from services.datasets.segments import UNPUBLISHED
from services.volume import written_beside


class UploadDescription(msgspec.Struct, frozen=True):
    """A file as its client describes it before the first part."""

    id: str
    name: str
    bytes: int


@dataclass(frozen=True)
class PartialUpload:
    """A file that arrives in parts."""

    description: UploadDescription
    content: Path

    @property
    def received(self) -> int:
        """Return the bytes that are here. Raises FileNotFoundError if the file was deleted."""
        return self.content.stat().st_size

    @property
    def is_complete(self) -> bool:
        return self.received == self.description.bytes

    def write(self, offset: int, piece: bytes) -> int:
        """Write `piece`, whose first byte is byte `offset` of the file, without the bytes that are
        here. Return the offset behind it. Raises ValueError if bytes before it are missing."""
        with self.content.open("r+b") as file:
            # Two requests may send the same part: a broken connection ends late.
            fcntl.flock(file, fcntl.LOCK_EX)
            received = file.seek(0, os.SEEK_END)
            if offset > received:
                raise ValueError(f"byte {received} comes next, and not byte {offset}")
            file.write(piece[received - offset :])
        # Files are deleted by their age. The description is as young as the last part.
        with contextlib.suppress(FileNotFoundError):
            os.utime(_description_at(self.content))
        return offset + len(piece)

    def open(self) -> BinaryIO:
        """Open the file for reading."""
        return self.content.open("rb")

    def delete(self) -> None:
        """Delete the file."""
        self.content.unlink(missing_ok=True)
        _description_at(self.content).unlink(missing_ok=True)


def upload_id(name: str, size: int, fingerprint: str) -> str:
    """Return 32 hex digits, the same for the same file."""
    return hashlib.sha256(msgspec.json.encode([name, size, fingerprint])).hexdigest()[:32]


def begin_upload(root: Path, description: UploadDescription) -> PartialUpload:
    """Return the upload of this id, which may have bytes already."""
    content = _content_at(root, description.id)
    content.parent.mkdir(parents=True, exist_ok=True)
    with written_beside(_description_at(content)) as beside:
        beside.write_bytes(msgspec.json.encode(description))
    content.touch()
    return PartialUpload(description, content)


def find_upload(root: Path, id: str) -> PartialUpload | None:
    """Return the upload of this id, or None."""
    content = _content_at(root, id)
    try:
        text = _description_at(content).read_bytes()
        description = msgspec.json.decode(text, type=UploadDescription)
    except (OSError, msgspec.MsgspecError):
        return None
    return PartialUpload(description, content) if content.exists() else None


def _content_at(root: Path, id: str) -> Path:
    return root / "datasets" / f"{UNPUBLISHED}{id}.upload"


def _description_at(content: Path) -> Path:
    return content.with_suffix(".json")
