"""Settings that come from more than one place: secrets in files."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from reward.settings import RewardSettings
from services.settings import Settings, complaints


def test_secrets_may_lie_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("s3cr/t\n")
    (tmp_path / "key").write_text("hr-first\n")
    monkeypatch.setenv("HEADRACE_REDIS_URL", "redis://box:6379/0")
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "key"))

    settings = Settings()

    assert settings.redis_url.get_secret_value() == "redis://:s3cr%2Ft@box:6379/0"
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "hr-first"


def test_keys_of_those_the_reward_service_asks_may_lie_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.json").write_text('{"strict": "k"}')
    monkeypatch.setenv("HEADRACE_ENDPOINT_KEYS_FILE", str(tmp_path / "keys.json"))

    settings = RewardSettings(judges=["strict=http://judge/v1"])

    assert settings.judge_endpoints["strict"].key == "k"


def test_a_variable_wins_over_a_file_and_an_empty_name_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("from the file")
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD", "set")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", "")

    assert Settings().redis_url.get_secret_value() == "redis://:set@127.0.0.1:6379/0"
    assert Settings().api_key is None


def test_a_secret_that_cannot_be_read_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "missing"))

    with pytest.raises(SettingsError) as error:
        Settings()

    path = tmp_path / "missing"
    assert complaints(error.value) == [
        f"HEADRACE_API_KEY_FILE: {path} cannot be read: No such file or directory"
    ]


def test_a_list_that_is_not_json_is_named_with_its_variable_and_the_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lists(Settings):
        verifiers: list[str] = []

    monkeypatch.setenv("HEADRACE_VERIFIERS", "mine.py")
    with pytest.raises(SettingsError) as raised:
        Lists()
    assert complaints(raised.value) == [
        "HEADRACE_VERIFIERS: is not JSON. Write a list as "
        """'["one", "two"]', and a mapping as '{"name": "value"}'"""
    ]
