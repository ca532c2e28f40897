"""Programs in the sandbox have bounded resources, and they end. Every attack runs for real."""

import asyncio
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.sandbox.jail import HOME
from reward.sandbox.probe import probe
from reward.sandbox.running_program import ProgramEnding, SandboxError
from reward.sandbox.sandbox_host import ROOT, Sandbox, SandboxOptions
from tests.integration.reward.conftest import alive, until
from tests.integration.reward.sandboxes import MEMORY, run, zygote

pytestmark = pytest.mark.usefixtures("isolation")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox(SandboxOptions())
    yield found
    found.close()


def below(pid: int) -> list[int]:
    """Return the processes of a sandbox without its zygote."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if alive(int(child))]


def test_a_program_reads_and_prints_and_ends(sandbox: Sandbox) -> None:
    ending = run(sandbox, "import sys\nprint(input()[::-1])\nsys.exit('no')", "abc\n")

    assert ending._replace(waited=0.0) == ProgramEnding("", 1, b"cba\n", b"no\n", b"")


def test_the_sandbox_isolates_on_this_machine() -> None:
    assert "namespaces" in probe(SandboxOptions())


def test_a_python_below_the_folder_of_programs_is_there_and_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        venv.create(folder, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": folder}))
        packages.joinpath("below.py").write_text("NAME = 'here'")
        sandbox = Sandbox(SandboxOptions(python=f"{folder}/bin/python"))
        try:
            source = f"import below\nprint(below.NAME)\nopen({str(packages / 'more')!r}, 'w')"
            ending = run(sandbox, source)
        finally:
            sandbox.close()
    assert ending.output == b"here\n"
    assert b"Read-only file system" in ending.errors


FORK_BOMB = """
import os, time
count = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
    except OSError as error:
        raise SystemExit(f"{count} and no more")
"""


def test_a_fork_bomb_stops_at_the_limit_and_is_gone_afterwards(sandbox: Sandbox) -> None:
    ending = run(sandbox, FORK_BOMB)

    assert ending.code == 1
    assert 8 <= int(ending.errors.split()[0]) <= 32
    assert below(zygote(sandbox)) == []


def test_a_fork_bomb_that_never_gives_up_is_killed(sandbox: Sandbox) -> None:
    source = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    assert run(sandbox, source).limit == "time_limit"
    assert below(zygote(sandbox)) == []


def test_a_memory_bomb_hits_its_limit(sandbox: Sandbox) -> None:
    ending = run(sandbox, "x = b'1' * (1 << 30)")

    assert ending.limit == "memory_limit"
    assert ending.errors.endswith(b"MemoryError\n")


def test_processes_together_have_one_memory_limit(sandbox: Sandbox) -> None:
    """Each process takes two thirds of the limit."""
    source = f"""
import os, time
for _ in range(3):
    if os.fork() == 0:
        break
x = b'1' * ({MEMORY} * 2 // 3)
time.sleep(60)
"""
    began = time.monotonic()

    assert run(sandbox, source, seconds=20).limit == "memory_limit"
    assert time.monotonic() - began < 20


def test_memory_that_children_share_with_their_parent_counts_once(sandbox: Sandbox) -> None:
    source = f"""
import os, time
x = b'1' * ({MEMORY} * 2 // 3)
for _ in range(8):
    if os.fork() == 0:
        time.sleep(.3)
        os._exit(0)
for _ in range(8):
    os.wait()
print(len(x))
"""
    assert run(sandbox, source, seconds=5).code == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_ten_gigabytes_of_output_are_cut_at_the_limit(sandbox: Sandbox, stream: str) -> None:
    source = f"import sys\nfor _ in range(10_000): sys.{stream}.write('x' * 1_000_000)"

    ending = run(sandbox, source, seconds=5)

    assert ending.limit == "output_limit"
    assert len(ending.output) + len(ending.errors) <= 17 << 20


def test_ten_gigabytes_in_files_do_not_fit(sandbox: Sandbox) -> None:
    source = """
for number in range(1000):
    with open(f"file-{number}", "wb") as file:
        file.write(bytes(10_000_000))
"""
    ending = run(sandbox, source, seconds=5)

    assert b"No space left" in ending.errors
    assert run(sandbox, "import os; print(os.listdir())").output == b"[]\n"


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import threading; threading.Thread(target=threading.Event().wait).start()",
    ],
)
def test_a_loop_that_ignores_signals_is_killed(sandbox: Sandbox, source: str) -> None:
    deaf = "import signal\nfor n in {*range(1, 64)} - {9, 19, 32, 33}: signal.signal(n, 1)\n"

    began = time.monotonic()
    ending = run(sandbox, deaf + source)

    assert ending.limit == "time_limit"
    assert time.monotonic() - began < 60


def test_a_daemon_ends_with_the_program(sandbox: Sandbox) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        open("/tmp/there", "w").close()
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists("/tmp/there"):
    time.sleep(.001)
print("left one behind")
"""
    assert run(sandbox, source).output == b"left one behind\n"
    assert below(zygote(sandbox)) == []


def test_programs_end_with_the_worker_that_started_them(tmp_path: Path) -> None:
    """A worker is killed at any moment, so nothing may depend on its last words."""
    code = f"""
import sys
from reward.sandbox.sandbox_host import *
sandbox = Sandbox(SandboxOptions())
open({str(tmp_path / "zygote")!r}, "w").write(str(sandbox._zygote.pid))
source = "import os, time; os.fork(); os.setpgid(0, 0); time.sleep(1000)"
sandbox.run([ProgramTask({{"kind": "script", "source": source}})], Limits(100, 100, {MEMORY}))
"""
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    found: list[int] = []

    def started() -> bool:
        place = tmp_path / "zygote"
        found[:] = [int(place.read_text())] if place.exists() and place.read_text() else []
        for pid in found:
            found.extend(below(pid))
        return len(found) >= 4

    asyncio.run(until(started, "the program and its child run"))
    worker.kill()
    worker.wait()
    asyncio.run(until(lambda: not any(map(alive, found)), "all of them end"))


def test_an_unavailable_sandbox_names_the_reason_and_the_way_out() -> None:
    with pytest.raises(SandboxError, match=r"no-such-python.*docs/sandbox.md.*--code-without"):
        probe(SandboxOptions(python="/no-such-python"))


def test_without_namespaces_the_sandbox_refuses(tmp_path: Path) -> None:
    """As in a container whose seccomp profile forbids namespaces: unshare(2) is refused."""
    code = """
from reward.sandbox.seccomp import Filter
from reward.sandbox.sandbox_host import SandboxOptions
from reward.sandbox.probe import probe
none = Filter()
none.refuse("unshare")
none.load()
try:
    probe(SandboxOptions())
except Exception as error:
    print(error)
print(probe(SandboxOptions(isolated=False)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    refused, without = ended.stdout.splitlines()
    assert refused.startswith("programs cannot be isolated here: unshare: Operation not permitted")
    assert "--code-without-isolation" in refused
    assert "NO isolation" in without


def test_without_isolation_programs_still_have_limits_and_end() -> None:
    own = Sandbox(SandboxOptions(isolated=False))
    daemon = "import os, time\nif os.fork() == 0:\n os.setpgid(0, 0)\n time.sleep(1000)\n"
    try:
        assert run(own, daemon + "print(1)").output == b"1\n"
        assert run(own, daemon + "while True: pass").limit == "time_limit"
        assert run(own, "x = b'1' * (1 << 30)").limit == "memory_limit"
        assert run(own, "import os; print(os.getcwd().startswith('/tmp'))").output == b"True\n"
        assert below(zygote(own)) == []
    finally:
        own.close()
