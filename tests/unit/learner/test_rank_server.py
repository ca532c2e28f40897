"""The ranks' common parent: what it gives a rank, and how both end."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.death_signal import die_with
from learner.supervise.rank_processes import RankProcesses
from learner.supervise.requests import MAX_BYTES, RankEnded, Ready, Report, SpawnRank, Terminate
from tests.integration.launch.conditions import eventually

# Ends at once with a code that it is given, else at a signal.
RANK = """
import json, os, signal, sys
def main():
    met = os.environ["HEADRACE_RENDEZVOUS"]
    told = {
        "pid": os.getpid(), "session": os.getsid(0), "parent": os.getppid(),
        "arguments": sys.argv[1:], "met": open(met).read(),
        "ignored": signal.getsignal(signal.SIGTERM) == signal.SIG_IGN,
        "sockets": sum("socket" in os.readlink(f"/proc/self/fd/{fd}") for fd in own()),
    }
    name = os.environ["TELL"] + os.environ["RANK"]
    with open(name + ".part", "w") as file:
        json.dump(told, file)
    os.rename(name + ".part", name)
    if os.environ["END"]:
        return int(os.environ["END"])
    signal.pause()
def own():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
if __name__ == "__main__":
    sys.exit(main())
"""
# The server as it is with a GPU build of torch.
SERVER = """
import sys
from learner.supervise import rank_server
rank_server.installed_device = lambda: {device!r}
sys.exit(rank_server.main())
"""


@pytest.fixture(params=["cpu", "cuda"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, and the supervisor's socket."""
    (tmp_path / "small_rank.py").write_text(RANK)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = SERVER.format(device=request.param)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with ours, its:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(its.fileno()), "small_rank", "--ranks", "2"],
            env=os.environ | {"PYTHONPATH": path},
            pass_fds=[its.fileno()],
            preexec_fn=die_with(os.getpid()),
        )
        its.close()
        ours.settimeout(100)
        yield process, ours
        process.kill()
        process.wait()


def report(supervisor: socket.socket) -> Any:
    return msgspec.msgpack.decode(supervisor.recv(MAX_BYTES), type=Report)


def told(file: Path) -> dict[str, Any]:
    eventually(file.exists, what=str(file))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_rank_has_its_own_session_the_meeting_file_and_default_signals(
    server: tuple[subprocess.Popen[bytes], socket.socket], tmp_path: Path
) -> None:
    process, supervisor = server
    assert report(supervisor) == Ready()
    (tmp_path / "meeting").write_text("here")
    with (tmp_path / "meeting").open() as meeting:
        for local, end in enumerate(["", "3"]):
            environment = {"RANK": str(local), "TELL": str(tmp_path / "told"), "END": end}
            order = msgspec.msgpack.encode(SpawnRank(local, environment))
            socket.send_fds(supervisor, [order], [meeting.fileno()])
    assert report(supervisor) == RankEnded(1, 3)
    first = told(tmp_path / "told0")
    assert first["session"] == first["pid"] != process.pid
    assert first["parent"] == process.pid
    assert first["arguments"] == ["--ranks", "2"]
    assert (first["met"], first["ignored"], first["sockets"]) == ("here", False, 0)

    # A scheduler sends SIGTERM to every process of a job: the ranks end first.
    process.send_signal(signal.SIGTERM)
    supervisor.send(msgspec.msgpack.encode(Terminate()))
    assert report(supervisor) == RankEnded(0, -signal.SIGTERM)
    assert process.poll() is None
    supervisor.close()
    assert process.wait(60) == 0


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankProcesses:
    """Two ranks under one server, started again and again."""
    (tmp_path / "small_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("TELL", str(tmp_path / "told"))
    monkeypatch.setenv("END", "")
    return RankProcesses(["small_rank"], 2)


async def test_ranks_end_with_their_server_and_start_again_under_a_new_one(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    for death in ("parent", "pid"):
        await ranks.spawn(0)
        os.kill((await asyncio.to_thread(told, tmp_path / "told0"))[death], signal.SIGKILL)
        await asyncio.wait(ranks.running, timeout=60, return_when="FIRST_COMPLETED")
        await ranks.end()
        assert set(ranks.codes) <= {-signal.SIGKILL, -signal.SIGTERM}
        assert not ranks.running
        (tmp_path / "told0").unlink()
    await ranks.close()


async def test_a_cancelled_start_is_not_waited_for(ranks: RankProcesses, tmp_path: Path) -> None:
    """Asked to end while the server imports."""
    (tmp_path / "small_rank.py").write_text("import signal\nsignal.pause()")
    await ranks.spawn(0)
    ranks.terminate()
    await asyncio.wait(ranks.running, timeout=60)
    assert ranks.codes == [-signal.SIGTERM] * 2
    await ranks.end()


async def test_ranks_are_asked_to_end_as_soon_as_the_server_is_ready(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    """The server has just imported everything, and the supervisor does not know it yet."""
    await ranks.spawn(0)
    select.select([ranks._control], [], [])
    ranks.terminate()
    await asyncio.wait(ranks.running, timeout=60)
    assert ranks.codes == [-signal.SIGTERM] * 2
    await ranks.end()
    await ranks.close()
