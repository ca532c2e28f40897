"""The secrets of an installation in containers: made once, said once."""

import hashlib
import stat
from pathlib import Path

import pytest

from services.launch import first_start


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["first_start", str(folder), str(folder)])
    return first_start.main()


def test_the_api_key_is_made_and_printed_at_the_first_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, monkeypatch) == 0
    key = (tmp_path / "api-key").read_text().strip()
    assert capsys.readouterr().out == f"The API key, shown this once: {key}\n"
    assert len(key) == 46  # hr-, and 32 random bytes

    assert run(tmp_path, monkeypatch) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "api-key").read_text().strip() == key


def test_redis_gets_the_hash_of_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis-password").write_text("mine\n")

    assert run(tmp_path, monkeypatch) == 0

    digest = hashlib.sha256(b"mine").hexdigest()
    users = (tmp_path / "redis-users.conf").read_text()
    assert users.startswith(f"user default on #{digest} ~* &* +@all -config +config|get ")
    assert (tmp_path / "redis-password").read_text() == "mine\n"
    assert stat.S_IMODE((tmp_path / "redis-users.conf").stat().st_mode) == 0o444


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "none", monkeypatch) == 1
    assert f"{tmp_path / 'none'} cannot be used for secrets" in capsys.readouterr().err


def test_an_empty_secret_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("api-key", "redis-password"):
        (tmp_path / name).write_text("\n")

    assert run(tmp_path, monkeypatch) == 0

    key = (tmp_path / "api-key").read_text().strip()
    assert key.startswith("hr-")
    assert key in capsys.readouterr().out
    assert len((tmp_path / "redis-password").read_text().strip()) == 43  # 32 random bytes


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "api-key").mkdir()

    assert run(tmp_path, monkeypatch) == 1
    assert f"for secrets: {tmp_path / 'api-key'}: " in capsys.readouterr().err


def test_the_reward_service_is_given_its_own_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them, its_own = tmp_path / "all", tmp_path / "own"
    for folder in (all_of_them, its_own):
        folder.mkdir()
    monkeypatch.setattr("sys.argv", ["first_start", str(all_of_them), str(its_own)])
    assert first_start.main() == 0
    assert [file.name for file in its_own.iterdir()] == ["reward-key"]
    assert (its_own / "reward-key").read_text() == (all_of_them / "reward-key").read_text()
