"""Build the guide, the site at `/guide`, from docs/: `python -m deploy.guide` (`make guide`).

zensical makes the site, from docs/zensical.toml. It sees a copy of docs/ in which docs/guide/ is
the root and all other documents are in `reference/`, so that the addresses read well. A dead link
or heading fails the build. The installation of the package runs this too (setup.py).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "services" / "gateway" / "guide"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def build(site: Path = SITE) -> None:
    """Replace the folder `site` by the guide. Raises CalledProcessError if docs/ has dead links."""
    with TemporaryDirectory() as scratch:
        for file in DOCS.rglob("*"):
            copy = Path(scratch, "docs", place(file))
            if file.is_dir():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                copy.write_text(moved(file.read_text(), file))
            elif file.suffix in (".png", ".css"):
                shutil.copyfile(file, copy)
        shutil.copy(DOCS / "zensical.toml", scratch)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        subprocess.run(command, cwd=scratch, check=True)
        # The gateway answers with a problem document instead.
        Path(scratch, "site", "404.html").unlink()
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(Path(scratch, "site"), site)


def place(file: Path) -> Path:
    """Return where the site has a file of docs/."""
    guide = DOCS / "guide"
    return (
        file.relative_to(guide) if guide in file.parents else "reference" / file.relative_to(DOCS)
    )


def moved(text: str, file: Path) -> str:
    """Return the text of `file` with its links as the site has them. The site has only docs/: a
    link to another file of the tree becomes its text."""

    def follow(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(file.parent / link[2]))
        if DOCS not in target.parents:
            return link[1]
        there = os.path.relpath(place(target), place(file).parent)
        return f"[{link[1]}]({there}{link[3] or ''})"

    return LINK.sub(follow, text)


if __name__ == "__main__":
    try:
        build()
    except subprocess.CalledProcessError:
        sys.exit("the guide was not built: its problems are above")
