"""deploy/setup.sh, with an interpreter and a pip that only write down what they are asked."""

import fcntl
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# `-c` runs the real Python; an environment is a folder with this script in it.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-c "*) exec {sys.executable} "$@" ;;
"--version "*) exec {sys.executable} --version ;;
"-m venv") mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" && cp "$0" "$3/bin/python" ;;
esac
[ "$1 $2" = "-m pip" ] || exit 0
[ "$3" = --version ] && exit 0
shift 3
echo "$@" >>"$ASKED"
if [ -n "$PIP_FAILS" ] && echo "$@" | grep -q locks; then echo "$PIP_FAILS"; exit 1; fi
case "$*" in *"-e ./headrace") echo "#!$PWD/.venv/bin/python" >.venv/bin/headrace ;; esac
"""


class Project:
    """A copy of what set-up reads, on a machine of our making."""

    def __init__(self, folder: Path, gpu: bool = False) -> None:
        self.root, self.machine, self.tmp = folder / "project", folder / "bin", folder / "tmp"
        self.asked = folder / "asked.txt"
        self.asked.touch()
        for made in (self.machine, self.tmp, self.root / "deploy" / "locks"):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "setup.sh", self.root / "deploy")
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "headrace").mkdir()
        (self.root / "headrace/pyproject.toml").write_text("[project]\n")
        (self.root / "deploy/locks/cpu.txt").write_text("rich==14.0\ntorch==2.13.0+cpu\n")
        (self.root / "deploy/locks/gpu.txt").write_text("rich==14.0\ntorch==2.13.0\n")
        self.install("python3", PYTHON)
        self.install("nvidia-smi", f"#!/bin/sh\nexit {int(not gpu)}\n")

    def install(self, name: str, script: str) -> Path:
        """A program of this machine."""
        path = self.machine / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """deploy/setup.sh, from another folder than the project's."""
        path = f"{self.machine}:/usr/bin:/bin"
        return subprocess.Popen(
            [str(self.root / "deploy" / "setup.sh"), *arguments],
            env={"PATH": path, "TMPDIR": str(self.tmp), "ASKED": str(self.asked), **environment},
            cwd=self.tmp,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def setup(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run setup. Return its exit code and its output."""
        process = self.start(*arguments, **environment)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def installs(self) -> list[str]:
        """Return pip's install commands since the last call."""
        lines = self.asked.read_text().splitlines()
        self.asked.write_text("")
        return [line.replace("--no-deps --progress-bar off ", "") for line in lines]


OURS = ["--no-build-isolation -e .", "--no-build-isolation -e ./headrace"]
FROM_CPU = ["-r deploy/locks/cpu.txt", *OURS]
FROM_GPU = ["-r deploy/locks/gpu.txt", *OURS]


@pytest.mark.parametrize(
    ("gpu", "arguments", "installed"),
    [
        (False, (), FROM_CPU),
        (True, (), FROM_GPU),
        (True, ("cpu",), FROM_CPU),
        (False, ("gpu",), FROM_GPU),
    ],
)
def test_the_profile_is_the_machines_unless_it_is_named(
    tmp_path: Path, gpu: bool, arguments: tuple[str, ...], installed: list[str]
) -> None:
    project = Project(tmp_path, gpu=gpu)

    code, said = project.setup(*arguments)

    assert code == 0, said
    assert project.installs() == installed


def test_set_up_does_nothing_again_until_something_has_changed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.setup()
    project.installs()

    assert project.setup() == (0, "")
    assert project.installs() == []

    for changed in ("deploy/locks/cpu.txt", "pyproject.toml", "headrace/pyproject.toml"):
        with (project.root / changed).open("a") as file:
            file.write("# changed\n")
        project.setup()
        assert project.installs() == FROM_CPU
    project.setup("gpu")
    assert project.installs() == FROM_GPU


@pytest.mark.parametrize("bring", [shutil.copytree, shutil.move])
def test_a_copied_or_moved_checkout_gets_an_environment_of_its_own(
    tmp_path: Path, bring: Callable[[Path, Path], object]
) -> None:
    project = Project(tmp_path)
    project.setup()
    project.installs()
    elsewhere = tmp_path / "elsewhere"
    bring(project.root, elsewhere)
    project.root = elsewhere

    code, said = project.setup()

    assert code == 0, said
    assert "setup: .venv was made for another folder, so it is made again" in said
    assert project.installs() == FROM_CPU
    assert (elsewhere / ".venv/bin/headrace").read_text() == f"#!{elsewhere}/.venv/bin/python\n"
    assert project.setup() == (0, "")


def test_a_linked_environment_of_another_checkout_is_left_alone(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.setup()
    other, worktree = project.root / ".venv", tmp_path / "worktree"
    shutil.copytree(project.root, worktree, ignore=shutil.ignore_patterns(".venv"))
    (worktree / ".venv").symlink_to(other)
    before = sorted(other.rglob("*"))
    project.root = worktree

    assert project.setup()[0] == 0

    assert not (worktree / ".venv").is_symlink()
    assert sorted(other.rglob("*")) == before


def test_set_up_leaves_nothing_but_the_environment(tmp_path: Path) -> None:
    project = Project(tmp_path)
    before = sorted(project.root.rglob("*"))

    project.setup()

    after = sorted(p for p in project.root.rglob("*") if ".venv" not in p.parts)
    assert after == before
    assert (project.root / "pyproject.toml").read_text() == "[project]\n"
    assert list(project.tmp.iterdir()) == []


def test_a_second_set_up_at_the_same_time_waits_for_the_first(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with (project.root / "pyproject.toml").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = project.start()
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "setup: another one runs, waiting for it\n"
        assert project.installs() == []
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert project.installs() == FROM_CPU


def test_an_installation_that_fails_shows_pips_last_words_and_is_tried_again(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)

    code, said = project.setup(PIP_FAILS="the disk is full")

    assert code == 1
    assert said.splitlines()[-2:] == [
        "the disk is full",
        "setup: pip could not install deploy/locks/cpu.txt; its last lines are above, all of them "
        "in .venv/setup.log",
    ]
    project.installs()
    assert project.setup()[0] == 0
    assert project.installs() == FROM_CPU


def test_without_a_cpu_build_of_torch_the_cuda_build_is_taken_and_said(tmp_path: Path) -> None:
    project = Project(tmp_path)

    missing = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    code, said = project.setup(PIP_FAILS=missing)

    assert code == 0, said
    assert "setup: pip finds no CPU build of torch==2.13.0; taking the CUDA build" in said
    assert project.installs() == [
        "-r deploy/locks/cpu.txt",
        "--progress-bar off torch==2.13.0",
        "-r .venv/without-torch.txt",
        *OURS,
    ]
    assert (project.root / ".venv/without-torch.txt").read_text() == "rich==14.0\n"


def test_an_unusable_profile_or_interpreter_is_named_with_the_way_out(tmp_path: Path) -> None:
    project = Project(tmp_path)
    old = project.install("python-old", "#!/bin/sh\nexit 1\n")

    assert project.setup("tpu") == (
        1,
        "setup: there is no profile 'tpu': use cpu or gpu (PROFILE=cpu make setup)\n",
    )
    assert project.setup(PYTHON=str(old)) == (
        1,
        f"setup: PYTHON={old} is not Python 3.11 or later\n",
    )
    (project.root / ".venv").mkdir()
    assert project.setup()[1].endswith("setup: .venv is in the way: it is no virtual environment\n")
    assert project.installs() == []


SLOW = """
echo "Collecting rich==14.0"
echo "  Downloading torch-2.13.0.whl (220.1 MB)"
mkdir -p "$TMPDIR/pip-unpack-1"
head -c 3000000 /dev/zero >"$TMPDIR/pip-unpack-1/torch-2.13.0.whl"
/bin/sleep 1
"""


@pytest.fixture
def slow(tmp_path: Path) -> Project:
    """A machine whose pip takes its time, and on which a moment passes for 20 seconds."""
    project = Project(tmp_path)
    project.install(
        "python3", PYTHON.replace('echo "$@" >>"$ASKED"', f'echo "$@" >>"$ASKED"{SLOW}')
    )
    project.install("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")
    return project


def test_setup_shows_the_progress_of_each_download(slow: Project) -> None:
    code, said = slow.setup("cpu")
    assert code == 0
    assert "1 of 2 packages are found; Downloading torch-2.13.0.whl (220.1 MB), 3 MB here" in said


def test_an_interrupted_set_up_says_so_in_a_sentence(slow: Project) -> None:
    process = slow.start("cpu")
    while not slow.asked.read_text():
        pass
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("setup: interrupted; `make setup` goes on with what is there\n")
    assert "Traceback" not in said
