"""Settings that come from more than one place: secrets in files."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsError

from headrace.variables import OTHERS, SETTINGS, places, unread, values
from learner.settings import LearnerSettings
from reward.settings import RewardSettings
from rollout.settings import RolloutSettings
from services.gateway.settings import GatewaySettings
from services.settings import Settings, complaints, from_command_line

ROOT = Path(__file__).resolve().parents[2]


def test_secrets_may_lie_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("s3cr/t\n")
    (tmp_path / "key").write_text("hr-first-0123456789\n")
    monkeypatch.setenv("HEADRACE_REDIS_URL", "redis://box:6379/0")
    monkeypatch.setenv("HEADRACE_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "key"))

    settings = Settings()

    assert settings.redis_url.get_secret_value() == "redis://:s3cr%2Ft@box:6379/0"
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "hr-first-0123456789"


def test_keys_for_servers_of_the_reward_service_may_lie_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.json").write_text('{"strict": "k"}')
    monkeypatch.setenv("HEADRACE_ENDPOINT_KEYS_FILE", str(tmp_path / "keys.json"))

    settings = RewardSettings(judges=["strict=http://judge/v1"])

    assert settings.judge_endpoints["strict"].key == "k"


def test_a_variable_wins_over_a_file_and_an_empty_name_is_ignored(
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


@pytest.mark.parametrize(("shown", "ranks"), [("", 0), ("-1", 0), ("1,0", 2), ("0,-1,1", 1)])
def test_a_learner_has_a_rank_for_each_gpu_that_cuda_shows(
    shown: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert LearnerSettings(ranks="gpu").count_ranks() == ranks


def test_the_list_of_variables_has_every_variable_of_the_source() -> None:
    kinds = (GatewaySettings, LearnerSettings, RewardSettings, RolloutSettings)
    fields = {f"HEADRACE_{name.upper()}" for kind in kinds for name in kind.model_fields}
    folders = ("headrace", "services", "rollout", "reward", "learner", "recipes", "bench", "deploy")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / "Makefile", ROOT / "docker-compose.yml", ROOT / "docs" / "reliability.md"]
    guide = ROOT / "services" / "gateway" / "guide"  # built from docs/, perhaps long ago
    files = [path for path in files if guide not in path.parents]
    texts = [path.read_text(errors="ignore") for path in files if path.suffix != ".pyc"]
    named = {name for text in texts for name in re.findall(r"HEADRACE_[A-Z_]*[A-Z]", text)}
    of_files = {f"{name}_FILE" for name in fields}

    assert fields == SETTINGS
    assert named - fields - of_files - {"HEADRACE_SESSION_API_KEY"} <= OTHERS


def test_a_variable_that_nothing_reads_is_named_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("# ours\nHEADRACE_GATEWEY_URL=http://box:8000\n")
    monkeypatch.setenv("HEADRACE_VERIFERS", "[]")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", "")
    monkeypatch.setenv("HEADRACE_GATEWAY_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("sys.argv", ["python -m reward"])
    monkeypatch.setattr("services.settings.place_caches", lambda data: "")

    from_command_line(RewardSettings)

    assert capsys.readouterr().err.splitlines() == [
        f"warning: nothing reads HEADRACE_GATEWEY_URL, which is set in {tmp_path / '.env'} "
        "(did you mean HEADRACE_GATEWAY_URL?)",
        "warning: nothing reads HEADRACE_VERIFERS, which is set in the environment "
        "(did you mean HEADRACE_VERIFIERS?)",
    ]
    assert unread(dict.fromkeys(places().keys() & SETTINGS, "the environment")) == []


def test_a_key_file_of_one_byte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("h")
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "key"))

    with pytest.raises(SettingsError, match="holds 1 characters: a key has at least 16"):
        Settings()


@pytest.mark.parametrize(
    ("kind", "variable", "value", "said"),
    [
        (GatewaySettings, "port", "80x", "must be a whole number, not '80x'"),
        (RewardSettings, "workers", "two", "must be a whole number, not 'two'"),
        (LearnerSettings, "ranks", "x", "must be a whole number, not 'x', or must be 'gpu'"),
        (Settings, "allow_unsafe_redis", "perhaps", "must be true or false, not 'perhaps'"),
        (Settings, "log_level", "loud", "must be 'debug', 'info', 'warning' or 'error', not"),
        (Settings, "gateway_url", "http://a\nb", r"'http://a\nb' is not a URL like"),
        (Settings, "api_key", "one two", "a key is one word of ASCII"),
    ],
)
def test_a_bad_value_is_shown_with_its_variable_and_the_expected_kind(
    kind: type[Settings], variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"HEADRACE_{variable.upper()}"
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as raised:
        kind()
    (line,) = complaints(raised.value)
    assert line.startswith(f"--{variable.replace('_', '-')} ({name}): {said}")
    assert variable != "api_key" or value not in line


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


def test_the_command_reads_a_file_of_variables_as_a_shell_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["# a comment", "export HEADRACE_POOL='a b' # why", 'HEADRACE_DATA="x#y"', "OTHER=1"]
    lines += ["HEADRACE_GATEWAY_URL=http://box:1#a # why", "headrace_api_key= hr-1 "]
    Path(".env").write_text("\n".join(lines))
    for name in values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_DATA", "wins")

    assert values() == {
        "HEADRACE_POOL": "a b",
        "HEADRACE_DATA": "wins",
        "HEADRACE_GATEWAY_URL": "http://box:1#a",
        "HEADRACE_API_KEY": "hr-1",
    }
