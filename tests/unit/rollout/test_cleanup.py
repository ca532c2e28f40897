"""Files of killed workers are limited in number, or deleted by the next worker."""

import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rollout.vllm.process import server
from rollout.vllm.process.logs import delete_old_logs
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMServer, make_server_folder
from services.contracts.config.vllm import VLLM
from services.runtime.file_lock import file_lock


def test_logs_of_living_workers_stay_and_the_newest_ten_of_others(tmp_path: Path):
    dead = [f"vllm-host-{number:02}.log" for number in range(12)]
    names = ["vllm-alive.log", *dead, "gateway.log"]
    for written, name in enumerate(names):
        for path in (tmp_path / name, tmp_path / f"{name}.1"):
            path.touch()
            os.utime(path, (written, written))

    delete_old_logs(tmp_path, {"alive", "new"})

    assert {path.name for path in tmp_path.iterdir()} == {
        name + end for name in names if name not in dead[:2] for end in ("", ".1")
    }


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for TMPDIR whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def test_folders_of_killed_workers_are_removed_and_those_of_living_workers_stay(folder: Path):
    code = (
        "import os, rollout.vllm.process.server as folders\n"
        "folders.make_server_folder()\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(folder)}, check=False
    )
    assert killed.returncode == -9
    (left,) = folder.iterdir()
    others = ("headrace-vllm-somebody", "headrace-vllm-00000000-4194303-1-of_another_host")
    for name in others:
        (folder / name).mkdir()

    first, second = make_server_folder(), make_server_folder()

    assert not left.exists()
    assert {path.name for path in folder.iterdir()} == {first.name, second.name, *others}


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user_stays(folder: Path):
    others = folder / f"headrace-vllm-{server._namespace()}-4194303-1-abcdefgh"
    others.mkdir()
    os.chown(others, 65534, 65534)

    make_server_folder()
    assert others.exists()

    os.chown(others, os.getuid(), os.getgid())
    make_server_folder()
    assert not others.exists()


def test_a_temporary_folder_too_long_for_vllms_sockets_is_replaced_by_a_short_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    long = folder / ("x" * 40)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(server, "SHORT_PATH", folder)
    made = make_server_folder()

    assert made.parent == folder
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(made / str(uuid.uuid4())))

    monkeypatch.setattr(server, "SHORT_PATH", folder / "missing")
    with pytest.raises(ValueError, match=r"a path of at most \d+ bytes.*set TMPDIR"):
        make_server_folder()
    assert list(long.iterdir()) == []


async def test_a_vllm_that_cannot_be_started_leaves_no_folder(folder: Path, tmp_path: Path):
    options = VLLM()
    command = str(tmp_path / "missing")
    missing = VLLMServer(
        ServerConfig(tmp_path, options, "float32", "cpu", command=command), tmp_path / "log"
    )

    with pytest.raises(FileNotFoundError):
        await missing.start()

    assert list(folder.iterdir()) == []


async def test_a_lock_with_a_deleted_file_does_not_delete_the_next_holders_file(tmp_path: Path):
    path = tmp_path / "file.lock"
    async with AsyncExitStack() as second:
        async with file_lock(path):
            path.unlink()
            await second.enter_async_context(file_lock(path))
        assert path.exists()
    assert not path.exists()
