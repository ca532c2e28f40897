"""Suggests the model folder that a mistyped path probably means."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from headrace.hub_cache import hub_cache_entry
from headrace.nearest import nearest

CONFIGS = ("config.json", "adapter_config.json")
"""A model folder has one of these files."""
MOST = 1000
"""Maximum entries that are read of a folder."""
ALIKE = 80
"""Minimum similarity of two paths, of 100. `org/name` of the hub is less similar to
`models/name`."""


def nearby(path: str, base: Path) -> str | None:
    """Return a model folder on this machine whose path is similar to `path`, which names no folder.
    A relative path begins at `base`. Other folders are never named, so their paths stay private."""
    if "\0" in path or os.path.isdir(hub_cache_entry(path)):
        return None
    wanted = Path(os.path.expanduser(path))
    if wanted.is_absolute() or len(wanted.parts) != 2:
        parent = wanted.parent
        candidates = (str(parent / name) for name in _models_in(base / parent))
    else:
        # The name of its parent may be mistyped, too.
        parents = (entry.name for entry in _entries(base) if entry.is_dir())
        candidates = (
            f"{parent}/{name}" for parent in parents for name in _models_in(base / parent)
        )
    return nearest(str(wanted), candidates, ALIKE)


def _models_in(folder: Path) -> Iterator[str]:
    for entry in _entries(folder):
        if any(os.path.isfile(Path(entry, name)) for name in CONFIGS):
            yield entry.name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(islice(entries, MOST))
    except OSError:
        return []
