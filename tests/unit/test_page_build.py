"""The built page in the tree is what its sources make."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.openapi_document import document

PAGE = Path(__file__).parents[2] / "services/gateway/page"


def test_no_source_of_the_page_makes_markup_of_text() -> None:
    makes_markup = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(|srcdoc|javascript:"
    )
    sources = {path.name: path.read_text() for path in (PAGE / "src").glob("*.ts*")}
    assert len(sources) > 10
    found = {name: makes_markup.findall(text) for name, text in sources.items()}
    assert {name: what for name, what in found.items() if what} == {}


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in (PAGE / "package-lock.json").read_text()


@pytest.mark.skipif(
    shutil.which("node") is None or not (PAGE / "node_modules").is_dir(),
    reason="needs Node and the page's packages: run make page",
)
def test_the_committed_page_is_what_its_sources_make(tmp_path: Path) -> None:
    def node(*command: str) -> None:
        subprocess.run(command, cwd=PAGE, check=True, timeout=120, capture_output=True)

    (PAGE / "openapi.json").write_text(document())
    node("npm", "run", "types")
    node("npm", "run", "check")
    node("node", "build.mjs", str(tmp_path))

    built = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".gz"}
    committed = (PAGE / "dist").iterdir()
    assert {p.name: p.read_bytes() for p in committed if p.suffix != ".gz"} == built
