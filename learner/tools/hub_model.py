"""`python -m learner.tools.hub_model NAME REVISION FOLDER`: download a model of the hub, and check
its files.

An interrupted download continues from its last byte. If the model cannot be had, the reason is on
stdout, and the exit code is 1.
"""

import hashlib
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.utils.tqdm import disable_progress_bars

NEEDED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Files of a hub repository that a model needs. None of them can contain code."""
NOT_NEEDED = ("*/*", "consolidated*", "*.bin.index.json")
CHUNK = 1 << 20


class NoModel(Exception):
    """The model cannot be had. The message is one sentence, without a period."""


def main() -> int:
    """Download the model that the arguments name. Returns the exit code."""
    name, revision, folder = sys.argv[1:]
    try:
        download(name, revision or None, Path(folder))
    except NoModel as error:
        print(error)
        return 1
    return 0


def download(name: str, revision: str | None, folder: Path) -> None:
    """Download the hub's model `name` to `folder`. Raises NoModel."""
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
    except Exception as error:
        raise _unreachable(name, error) from None
    files = [file for file in info.siblings or () if is_needed(file.rfilename)]
    names = sorted(file.rfilename for file in files)
    if "config.json" not in names or not any(file.endswith(".safetensors") for file in names):
        raise NoModel(f"{name} has no config.json with .safetensors files, which Headrace reads")
    _check_room(folder, sum(file.size or 0 for file in files) - present(folder))
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        snapshot_download(name, revision=info.sha, local_dir=folder, allow_patterns=names)
    except Exception as error:
        raise _unreachable(name, error) from None
    for file in files:
        check_hash(folder / file.rfilename, file)
    # The notes of the hub's library about the download.
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def is_needed(name: str) -> bool:
    """Whether a model needs this file of a hub repository."""
    return any(fnmatchcase(name, pattern) for pattern in NEEDED) and not any(
        fnmatchcase(name, pattern) for pattern in NOT_NEEDED
    )


def present(folder: Path) -> int:
    """Return the bytes that an earlier download has left."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_hash(path: Path, file: Any) -> None:
    """Raise NoModel if a file differs from the hub's. Small files have a size there, and no
    hash."""
    is_right = file.size is None or path.stat().st_size == file.size
    if is_right and file.lfs is not None:
        digest = hashlib.sha256()
        with path.open("rb") as content:
            while block := content.read(CHUNK):
                digest.update(block)
        is_right = digest.hexdigest() == file.lfs.sha256
    if not is_right:
        path.unlink()
        raise NoModel(
            f"{path.name} differs from the hub's file, and was deleted: the same command fetches "
            "it again"
        )


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise NoModel(
            f"{needed / 1e9:.1f} GB are needed, and {folder.parent} has {free / 1e9:.1f} GB free: "
            "make room, or choose another place with --to FOLDER"
        )


def _unreachable(name: str, error: Exception) -> NoModel:
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError"):
        return NoModel(
            f"the hub shows no model {name!r} ({kind}): check the name (org/name); a private or "
            "gated one needs HF_TOKEN"
        )
    return NoModel(
        f"the hub cannot be reached for {name!r} ({kind}): the same command goes on later, and "
        "HF_ENDPOINT names a mirror"
    )


if __name__ == "__main__":
    sys.exit(main())
