"""The two distributions, built from what an image is built from: the client, and the server."""

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.client_alone import NEEDS, installed, run_alone

ROOT = Path(__file__).resolve().parents[2]
SERVER = {"bench", "learner", "recipes", "reward", "rollout", "services"}
UNTRACKED = ("__pycache__", "node_modules", "*.egg-info")


class Wheel(SimpleNamespace):
    """A built wheel: its file, the names in it, and what it says of itself."""

    def __init__(self, file: Path) -> None:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            texts = {Path(name).name: archive.read(name) for name in names if ".dist-info/" in name}
        about = message_from_bytes(texts["METADATA"])
        super().__init__(
            file=file,
            names=names,
            packages={name.split("/")[0] for name in names if ".dist-info/" not in name},
            version=about["Version"],
            needs=about.get_all("Requires-Dist") or [],
            commands=texts.get("entry_points.txt", b"").decode(),
            has_license="LICENSE" in texts,
        )


def copied() -> list[str]:
    """What the Dockerfile copies to install Headrace from."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    stage = dockerfile.partition(" AS code\n")[2].partition("\nFROM ")[0]
    return [name for line in re.findall(r"^COPY (.+) \S+$", stage, re.M) for name in line.split()]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for name in copied():
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source, target, symlinks=True, ignore=shutil.ignore_patterns(*UNTRACKED)
            )
        else:
            shutil.copy(source, target)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(built), "./headrace", "."],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.name.partition("-")[0]: Wheel(file) for file in built.glob("*.whl")}


def test_the_context_of_an_image_has_what_the_image_copies() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert [name for name in copied() if f"!{name}" not in allowed and "locks" not in name] == []


def test_the_wheel_of_the_client_has_one_package_and_few_needs(wheels: dict[str, Wheel]) -> None:
    client = wheels["headrace"]
    assert client.packages == {"headrace"}
    assert {Path(name).suffix for name in client.names if name.startswith("headrace/")} == {
        ".json",
        ".py",
        ".typed",
    }
    modules = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "headrace").rglob("*.py")
        if "build" not in file.parts
    }
    assert modules <= set(client.names), "pyproject.toml lists each package"
    assert [re.split("[>=]", need)[0] for need in client.needs] == NEEDS
    assert "headrace = headrace.cli:app" in client.commands
    assert client.has_license


def test_the_wheel_of_the_server_needs_the_client_of_its_version(wheels: dict[str, Wheel]) -> None:
    server = wheels["headrace_server"]
    assert server.packages == SERVER
    assert f"headrace=={wheels['headrace'].version}" in server.needs
    assert server.version == wheels["headrace"].version
    assert "headrace = " not in server.commands, "the client has the command"
    for name in ("guide/index.html", "page/dist/index.html"):
        assert f"services/gateway/{name}" in server.names


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Wheel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheels["headrace"].file, tmp_path_factory.mktemp("alone"))


def test_the_client_works_where_only_its_needs_are_installed(
    wheels: dict[str, Wheel], alone: Path
) -> None:
    code = (
        "from importlib.metadata import version\n"
        "from importlib.util import find_spec\n"
        "from headrace import Client, Unreachable\n"
        f"print([name for name in {sorted(SERVER)} if find_spec(name)], version('headrace'))\n"
        "try: Client('http://127.0.0.1:9', retries=0).runs.get('a')\n"
        "except Unreachable as error: print(error)\n"
    )
    done = run_alone(alone, "-c", code)
    assert done.stdout.startswith(f"[] {wheels['headrace'].version}\nno answer from "), done.stderr


def test_the_command_works_where_only_the_client_is_installed(alone: Path) -> None:
    shown = run_alone(alone, "-m", "headrace", "--help")
    assert "  runs         List runs, newest first" in shown.stdout, shown.stderr
    assert "With headrace-server on this machine also:\n  demo, up, doctor" in shown.stdout
    for command in ("up", "backup"):
        refused = run_alone(alone, "-m", "headrace", command, "--data", "x")
        assert refused.stderr == (
            f"error: headrace {command} needs the server on this machine: "
            "pip install headrace-server\n"
        )
        assert refused.returncode == 1
    away = run_alone(alone, "-m", "headrace", "runs", "--gateway", "http://127.0.0.1:9")
    assert away.stderr.startswith("error: no gateway at http://127.0.0.1:9: ")
    assert away.returncode == 3
