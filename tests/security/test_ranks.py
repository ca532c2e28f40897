"""The ranks of a learner on one host: nobody else can connect to them, or open the file in which
they meet."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.death_signal import die_with
from services.settings import EXIT_SETTINGS
from tests.integration.learner.conftest import Place, placed, stored
from tests.integration.learner.test_runs import SFT, add_sums, submit
from tests.integration.learner.torch_worker import eventually

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with placed(tmp_path) as here:
        yield here


def meeting_file(pid: int) -> Path:
    """The file in which a rank meets the others, by one of its descriptors."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    return next(one for one in descriptors if "memfd:headrace-ranks" in target(one))


def target(descriptor: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(descriptor)
    return ""


def read_by_nobody(path: Path) -> bytes:
    """The error of another user who reads a file."""
    return subprocess.run(
        ["cat", path], user=NOBODY, group=NOBODY, capture_output=True, check=False
    ).stderr


def start(place: Place) -> subprocess.Popen[bytes]:
    """A learner of two ranks."""
    with place.log.open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "learner", "--ranks", "2"],
            stderr=log,
            preexec_fn=die_with(os.getpid()),
            env=os.environ
            | {
                "HEADRACE_REDIS_URL": place.redis_url,
                "HEADRACE_DATA": str(place.data),
                "OMP_NUM_THREADS": "1",
                # Ranks of one host do not use it.
                "GLOO_SOCKET_IFNAME": "eth0",
            },
        )


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def listening(pid: int) -> list[tuple[str, int]]:
    """The addresses on which a process accepts TCP connections."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state != "0A" or rest[5] not in inodes:
                continue
            address, port = local.split(":")
            words = [address[at : at + 8] for at in range(0, len(address), 8)]
            packed = b"".join(struct.pack("=I", int(word, 16)) for word in words)
            found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def accepts(address: tuple[str, int]) -> bool:
    """Whether anybody can connect there."""
    try:
        socket.create_connection(address, timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.multirank
async def test_nobody_else_reaches_the_ranks_of_a_learner(place: Place) -> None:
    endless = {"max_steps": 10_000, "rows_per_step": 8}
    async with stored(place) as store:
        await add_sums(store, place.data)
        await submit(store, "first", SFT | {"training": endless})
        learner = start(place)

        async def step() -> int:
            assert learner.poll() is None, place.log.read_text()[-3000:]
            record: Any = await store.runs.get("first")
            return int(record.step)

        try:
            await eventually(step, within=150)
            (server,) = children(learner.pid)
            ranks = children(server)
            assert len(ranks) == 2
            assert listening(learner.pid) == listening(server) == []
            # Gloo's, for the other ranks: one for each rank and group.
            ports = [one for rank in ranks for one in listening(rank)]
            assert [host for host, _ in ports] == ["127.0.0.1"] * 6
            assert not any(map(accepts, ports))
            met = [meeting_file(pid) for pid in ranks]
            assert [bool(file.read_bytes()) for file in met] == [True, True]
            if os.geteuid() == 0:
                assert b"Permission denied" in read_by_nobody(met[0])
            learner.send_signal(signal.SIGTERM)
            assert learner.wait(120) == 0, place.log.read_text()[-3000:]
        finally:
            learner.kill()
            learner.wait()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--ranks", "gpu"), "error: --ranks gpu (HEADRACE_RANKS): this process sees no GPU"),
    ],
)
def test_a_learner_that_cannot_start_says_why(flags: tuple[str, ...], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "learner", *flags],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_SETTINGS
    assert said in ended.stderr
