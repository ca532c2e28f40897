"""Compares the files of a run's checkpoint with its manifest. Needs no torch."""

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from services.volume.files import DamagedFile, check_file

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d+)-([^-]+)")
CARD = "README.md"
LEGAL = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "USE_POLICY*")
NOT_NEEDED = ("generation_config.json", CARD, *LEGAL)
"""Files of a checkpoint that training does not need."""

CHECKED_BYTES = 1 << 30
"""Bytes of a checkpoint's smallest files that are read before a submission is answered. The learner
reads all files."""


class ListedFile(NamedTuple):
    """A file in the manifest."""

    name: str
    bytes: int
    xxh3: str

    @property
    def needed(self) -> bool:
        return not any(fnmatchcase(self.name, pattern) for pattern in NOT_NEEDED)


def listed_files(folder: Path) -> list[ListedFile]:
    """Return the files of a checkpoint's manifest, largest first. Raises DamagedFile, OSError."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        listed = [
            ListedFile(str(n), int(entry["bytes"]), str(entry["xxh3"]))
            for n, entry in files.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{MANIFEST} is no list of files: {error}") from error
    if any(".." in Path(file.name).parts or file.name.startswith("/") for file in listed):
        raise DamagedFile(f"{MANIFEST} names a file elsewhere")
    return sorted(listed, key=lambda file: (-file.bytes, file.name))


def damage(folder: Path, max_bytes: int | None = None) -> str | None:
    """Describe why training cannot go on from a checkpoint, or return None if it is whole.
    `max_bytes` limits the bytes that are read, smallest files first; the other files are compared
    by size only."""
    try:
        for file in reversed(listed_files(folder)):
            if not file.needed:
                continue
            reads = max_bytes is None or file.bytes <= max_bytes
            max_bytes = max_bytes if max_bytes is None or not reads else max_bytes - file.bytes
            check_file(folder / file.name, file.bytes, file.xxh3 if reads else None, file.name)
    except FileNotFoundError as error:
        lacks = Path(str(error.filename)).name
        return f"checkpoint {folder.name} lacks {lacks}"
    except (DamagedFile, OSError) as error:
        return f"checkpoint {folder.name} is damaged: {error}"
    return None


def earlier(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield step and folder of each checkpoint before `folder` of the same run, newest first.
    Checkpoints of dead lineages were deleted when `folder` was committed."""
    before = NAME.fullmatch(folder.name)
    for step, path in others(folder):
        if before is not None and step < int(before[1]):
            yield step, path


def others(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield step and folder of each other checkpoint of the run that `folder` is one of, newest
    first."""
    if not folder.parent.is_dir():
        return
    named = ((NAME.fullmatch(path.name), path) for path in folder.parent.iterdir())
    checkpoints = [(int(match[1]), path) for match, path in named if match and path != folder]
    yield from sorted(checkpoints, reverse=True)
