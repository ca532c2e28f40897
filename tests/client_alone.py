"""The client's wheel with what it needs, and nothing else: a machine without a server."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

NEEDS = ["httpx", "pydantic", "pyyaml", "rich", "typer"]


def built(folder: Path) -> Path:
    """Build the client's wheel in `folder`."""
    source = Path(__file__).resolve().parents[1] / "headrace"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(source, folder / "headrace", ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "./headrace"], cwd=folder, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """Unpack the client's `wheel` into `folder`, with links to what it needs."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    names: set[str] = set()
    for name in NEEDS:
        needed(name, names)
    for name in names:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top != ".." and not (folder / top).exists():
                (folder / top).symlink_to(str(distribution(name).locate_file(top)))
    return folder


def needed(name: str, found: set[str]) -> None:
    """Add to `found` the distribution `name` and each that it needs here."""
    if name in found:
        return
    found.add(name)
    for line in distribution(name).requires or ():
        if ";" not in line:
            needed(re.split(r"[\[><=!~; ]", line)[0], found)


def run_alone(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages in `folder` alone."""
    return subprocess.run(
        # Without -S the environment's own packages would be there.
        [sys.executable, "-S", *arguments],
        env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
