"""The folder of verifiers that an operator adds while the service runs.

`verifiers/NAME/VERSION/OBJECT.py` is a version of the verifier NAME: a file as it was sent, whose
OBJECT is a class or a function. Versions are never changed; a new file is the next version. A
version that is removed leaves its folder without a file, so no later one gets its number. NAME is
the newest version, NAME@VERSION any of them.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = "verifiers"
"""In the data folder."""
NAME = re.compile(r"[a-z][a-z0-9_-]{0,47}")


class AddedVerifier(NamedTuple):
    """A version of a verifier."""

    name: str
    version: int
    file: Path

    @property
    def entry(self) -> str:
        """The entry of the setting `verifiers` for this version."""
        return f"{self.name}@{self.version}={self.file}:{self.file.stem}"


def added(data: Path) -> list[AddedVerifier]:
    """List the versions of all added verifiers in a data folder, oldest first."""
    versions = []
    for file in (data / FOLDER).glob("*/*/*.py"):
        version, name = file.parent.name, file.parent.parent.name
        if version.isdecimal() and NAME.fullmatch(name) and file.stem.isidentifier():
            versions.append(AddedVerifier(name, int(version), file))
    return sorted(versions, key=lambda verifier: (verifier.name, verifier.version))


def entries(data: Path) -> list[str]:
    """Return the entries of the setting `verifiers` for all added verifiers: each version by its
    number, and the newest by the verifier's name alone."""
    versions = added(data)
    newest = {verifier.name: verifier for verifier in versions}
    return [
        *(verifier.entry for verifier in versions),
        *(f"{name}={verifier.file}:{verifier.file.stem}" for name, verifier in newest.items()),
    ]


def keep(data: Path, name: str, object: str, source: str) -> AddedVerifier:
    """Write the next version of a verifier. Raises OSError."""
    folder = data / FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    versions = [int(inner.name) for inner in folder.iterdir() if inner.name.isdecimal()]
    version = max(versions, default=0) + 1
    # The file appears with its whole text, or not at all.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as made:
        inner = Path(made) / str(version)
        inner.mkdir()
        file = inner / f"{object}.py"
        file.write_text(source, encoding="utf-8")
        with file.open() as written:
            os.fsync(written.fileno())
        inner.rename(folder / str(version))
    return AddedVerifier(name, version, folder / str(version) / f"{object}.py")


def remove(data: Path, name: str, version: str | None) -> list[AddedVerifier]:
    """Remove a version of a verifier, or all of them (None). Return what was removed."""
    removed = [
        verifier
        for verifier in added(data)
        if verifier.name == name and version in (None, str(verifier.version))
    ]
    for verifier in removed:
        verifier.file.unlink(missing_ok=True)
    return removed
