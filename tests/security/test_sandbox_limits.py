"""A program's limits hold for all its processes together, and no program costs another its reward.

`reward.sandbox.cgroup` has the kernel see to it where cgroups are delegated. Every test here also
holds elsewhere. docs/sandbox.md says what is promised where.
"""

import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reward.sandbox import cgroup
from reward.sandbox.limits import WITH_CGROUP, WITHOUT_CGROUP, Limits
from reward.sandbox.sandbox_host import ROOT, ProgramTask, Sandbox, SandboxOptions
from tests.integration.reward.conftest import Service
from tests.security.sandboxes import HIDE_LIBSECCOMP, MEMORY, Peak, below, run

SLACK = 320 << 20
"""Growth between two measurements on a busy machine without a cgroup; with one it is
`cgroup.SLACK_BYTES`."""


@pytest.fixture
def filtered(sandbox: Sandbox) -> Sandbox:
    if not sandbox.filtered:
        pytest.skip("libseccomp is not installed")
    return sandbox


CHILDREN = """
import mmap, os, socket, time
def children(work):
    count = 0
    try:
        while os.fork():
            count += 1
    except OSError:
        for _ in range(count):
            os.wait()
        return
    work()
    time.sleep(600)
"""
ESCAPES = {
    "shared mappings without their pages": """
def work():
    held = mmap.mmap(-1, 150 << 20)
    for page in range(0, len(held), 4096):
        held[page] = 1
    held.madvise(mmap.MADV_DONTNEED)
    time.sleep(600)
children(work)
""",
    "mappings filled at once": """
def work():
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    held = mmap.mmap(-1, 150 << 20, flags=flags)
    time.sleep(600)
children(work)
""",
    "pages that children had shared": """
held = bytearray(b"1") * (150 << 20)
def work():
    for page in range(0, len(held), 4096):
        held[page] = 2
children(work)
""",
    "buffers of sockets": """
held = []
def work():
    try:
        while True:
            held.append(socket.socketpair())
            for one in held[-1]:
                one.setblocking(False)
                try:
                    while one.send(bytes(65536)):
                        pass
                except BlockingIOError:
                    pass
    except OSError:
        pass
children(work)
""",
}
REFUSED_WITHOUT_CGROUP = ("shared mappings without their pages", "mappings filled at once")


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_kind_of_memory_passes_the_limit(filtered: Sandbox, escape: str) -> None:
    neighbour = Sandbox(SandboxOptions())
    endings = []

    def correct() -> None:
        endings.append(run(neighbour, "print(sum(range(10 ** 6)))"))

    beside = threading.Thread(target=correct)
    beside.start()
    with Peak(filtered) as peak:
        ending = run(filtered, CHILDREN + ESCAPES[escape], seconds=60)
    beside.join()
    neighbour.close()

    assert peak.bytes < MEMORY + SLACK
    assert [one.output for one in endings] == [b"499999500000\n"]
    counted = filtered._cgroup is not None
    if counted or escape not in REFUSED_WITHOUT_CGROUP:
        assert ending.limit == "memory_limit"


def test_children_that_free_what_they_share_stay_within_the_limit(sandbox: Sandbox) -> None:
    source = """
import os, time
held = b"1" * (100 << 20)
for _ in range(6):
    if os.fork() == 0:
        time.sleep(.2)
        os._exit(len(held) != 100 << 20)
print([os.wait()[1] for _ in range(6)])
"""
    assert run(sandbox, source, seconds=60).output == b"[0, 0, 0, 0, 0, 0]\n"


def test_a_fork_bomb_gets_few_processes(sandbox: Sandbox) -> None:
    source = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError:
    print(count)
"""
    most = (WITHOUT_CGROUP if sandbox._cgroup is None else WITH_CGROUP).processes

    ending = run(sandbox, source)
    # The kernel does not limit root without a second user id, so the service counts.
    assert ending.limit == "process_limit" or most // 2 < int(ending.output) < most
    assert list(below(sandbox._zygote.pid)) == []


def test_cpu_time_counts_over_all_processes(sandbox: Sandbox) -> None:
    source = """
import os
for _ in range(3):
    if os.fork() == 0:
        break
while True:
    pass
"""
    began = time.monotonic()

    assert run(sandbox, source, seconds=1.0, wall=60).limit == "time_limit"
    # One process alone would need a second of each CPU.
    assert time.monotonic() - began < 30


def test_a_program_has_no_session_of_its_own(filtered: Sandbox) -> None:
    source = """
import os
if os.fork() == 0:
    try:
        os.setsid()
    except PermissionError:
        os._exit(7)
print(os.wait()[1] >> 8)
"""
    assert run(filtered, source).output == b"7\n"


BURN = """
import os, time
print(flush=True)
while time.process_time() < {seconds}:
    pass
print("done")
"""
STARVED = f"""
import os, subprocess, sys
from reward.sandbox.sandbox_host import Sandbox, SandboxOptions
from tests.security.sandboxes import run
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
os.setpriority(os.PRIO_PROCESS, 0, 1)
sandbox = Sandbox(SandboxOptions())
busy = [
    subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    for _ in range(5)
]
try:
    ending = run(sandbox, {BURN.format(seconds=0.4)!r}, seconds=1.0, wall=0.8)
finally:
    for one in busy:
        one.kill()
print(ending.limit, ending.code, ending.output.split(), ending.waited)
sandbox.close()
"""


def test_a_program_that_waits_for_a_cpu_gets_the_time_back(sandbox: Sandbox) -> None:
    """Five others on its CPU: it needs half of its time by the clock, and takes thrice as long."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", STARVED], cwd=ROOT, capture_output=True, text=True, check=True
    )

    ending, waited = ended.stdout.rsplit(maxsplit=1)
    assert ending.split() == ["0", "[b'done']"]
    assert 0.4 < float(waited) < time.monotonic() - began


def test_a_program_that_sleeps_gets_no_time_back(sandbox: Sandbox) -> None:
    began = time.monotonic()

    assert run(sandbox, "import time; time.sleep(600)", wall=0.5).limit == "time_limit"
    assert time.monotonic() - began < 60


def test_a_program_that_waits_for_ever_is_starved_and_not_wrong(sandbox: Sandbox) -> None:
    limits = Limits(seconds=60, wall_seconds=60, memory_bytes=MEMORY, latest_seconds=0.3)
    task = ProgramTask({"kind": "script", "source": "while True: pass"})

    (ending,) = sandbox.run([task], limits)

    assert ending.limit == "starved"


HOSTILE = """
import os, time
for _ in range(28):
    try:
        if os.fork() == 0:
            break
    except OSError:
        pass
try:
    os.setsid()
except OSError:
    pass
while True:
    pass
"""
CORRECT = """
import time
while time.process_time() < 0.3:
    pass
print(int(input()) ** 2)
"""


@pytest.fixture
async def service(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    running = Service(tmp_path, "--workers", "9")
    try:
        await running.ready()
        async with running.client() as client:
            yield client
    finally:
        running.end()


async def test_correct_programs_stay_correct_while_a_hostile_one_runs(
    service: httpx.AsyncClient,
) -> None:
    limits = {"time_limit": 0.6}
    items: list[dict[str, Any]] = [
        {
            "id": str(number),
            "verifier": "code",
            "completion": CORRECT if number else HOSTILE,
            "answer": {"inputs": ["3\n"], "outputs": ["9\n"]},
            "params": limits,
        }
        for number in range(9)
    ]
    response = await service.post("/v1/score", json={"items": items}, timeout=300)

    hostile, *correct = response.json()["results"]
    assert [one["reward"] for one in correct] == [1.0] * 8, correct
    assert hostile["reward"] == 0.0


def test_without_libseccomp_the_measured_limits_hold(sandbox: Sandbox) -> None:
    source = f"""
from reward.sandbox.sandbox_host import Sandbox, SandboxOptions
from tests.security.sandboxes import run
sandbox = Sandbox(SandboxOptions())
print(sandbox.filtered)
print(run(sandbox, {CHILDREN + ESCAPES["pages that children had shared"]!r}, seconds=60).limit)
print(run(sandbox, {HOSTILE!r}, seconds=0.5).limit)
sandbox.close()
"""
    arguments = ["unshare", "--map-root-user", "--mount", "sh", "-c", HIDE_LIBSECCOMP, "sh"]
    ended = subprocess.run(
        [*arguments, sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    filtered, memory, hostile = ended.stdout.split()
    assert (filtered, memory) == ("False", "memory_limit")
    # The kernel does not limit the number of processes of root.
    assert hostile in ("time_limit", "process_limit")


@pytest.fixture
def counted(sandbox: Sandbox) -> Path:
    found = cgroup.delegated()
    if found is None:
        pytest.skip("no cgroup (version 2, with memory and pids) is delegated to these tests")
    return found


def test_the_kernel_measures_a_program_in_its_cgroup(counted: Path, sandbox: Sandbox) -> None:
    """The most that the kernel has counted for each of the escapes."""
    for escape in ESCAPES.values():
        peaks, end = [0], threading.Event()

        def measure(peaks: list[int] = peaks, end: threading.Event = end) -> None:
            while not end.is_set():
                for file in counted.glob("program-*/memory.peak"):
                    try:
                        peaks.append(int(file.read_text()))
                    except OSError:
                        continue
                time.sleep(0.005)

        watch = threading.Thread(target=measure)
        watch.start()
        ending = run(sandbox, CHILDREN + escape, seconds=60)
        end.set()
        watch.join()

        assert ending.limit == "memory_limit"
        assert max(peaks) <= MEMORY + cgroup.SLACK_BYTES


def test_no_cgroup_stays_behind(counted: Path, sandbox: Sandbox) -> None:
    (counted / "program-4194305-0").mkdir()

    Sandbox(SandboxOptions()).close()
    run(sandbox, "print(1)")

    assert list(counted.glob("program-*")) == []
