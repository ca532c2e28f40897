"""The Compose files: what may be set is explained, and a secret is seen by whom it serves."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILES = [ROOT / "docker-compose.yml", *sorted((ROOT / "deploy").glob("compose.*.yml"))]
# Variables of Compose itself.
COMPOSE = {"COMPOSE_PROFILES", "COMPOSE_FILE"}


def services(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    return found


def target(volume: str | dict[str, Any]) -> str:
    """Return the paths of volumes in a container."""
    if isinstance(volume, dict):
        return str(volume["target"])
    # The name, which may hold colons of its own, ends with the last one before the target.
    return re.sub(r"\$\{[^}]*\}", "source", volume).split(":")[1]


def test_env_example_explains_every_setting_of_compose() -> None:
    used = {name for file in FILES for name in re.findall(r"\$\{(\w+)", file.read_text())}
    explained = set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(), re.M))
    assert explained - COMPOSE == used


def test_env_example_states_the_true_defaults() -> None:
    said = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.M))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", FILES[0].read_text()))
    lists = {f"HEADRACE_{n}" for n in ("JUDGES", "REWARD_MODELS", "TEACHERS", "VERIFIERS")}
    paths = {f"HEADRACE_{n}" for n in ("SECRETS", "REWARD_ENDPOINT_KEYS", "MODELS", "DATA_FOLDER")}
    examples = lists | paths
    assert {n: said[n] for n in defaults if n not in examples} == {
        n: default for n, default in defaults.items() if n not in examples
    }


def test_the_hub_token_is_seen_by_what_downloads_models_and_by_nothing_else() -> None:
    seeing = {
        (file.name, name)
        for file in FILES
        for name, service in services(file).items()
        if "HF_TOKEN" in service.get("environment", {})
    }
    assert seeing == {
        ("docker-compose.yml", "learner"),
        ("docker-compose.yml", "learner-cpu"),
        ("compose.learner.yml", "learner"),
        ("compose.learner.yml", "learner-cpu"),
        ("compose.reward-models.yml", "reward"),
        ("compose.reward-models-cpu.yml", "reward"),
    }


def test_the_buckets_key_is_seen_by_what_uses_it_and_by_nothing_else() -> None:
    seeing = {
        (file.name, name)
        for file in FILES
        for name, service in services(file).items()
        if "AWS_SECRET_ACCESS_KEY" in service.get("environment", {})
    }
    using = ("gateway", "rollout", "rollout-cpu", "learner", "learner-cpu")
    assert seeing == {
        *(("compose.payloads.yml", name) for name in using),
        ("compose.rollout.yml", "rollout"),
        ("compose.learner.yml", "learner"),
        ("compose.learner.yml", "learner-cpu"),
    }
    # A store outside is reached from there.
    base, more = services(FILES[0]), services(ROOT / "deploy/compose.payloads.yml")
    for name in using:
        assert "outside" in more[name].get("networks", base[name]["networks"])


@pytest.mark.parametrize("profile", ["gpu", "cpu"])
def test_a_reward_service_that_loads_models_has_torch(profile: str) -> None:
    name = "compose.reward-models.yml" if profile == "gpu" else "compose.reward-models-cpu.yml"
    reward = services(ROOT / "deploy" / name)["reward"]
    assert reward["build"] == {"target": "reward-models", "args": {"PROFILE": profile}}
    assert reward["image"].startswith("headrace-reward-models:")
    stages = re.findall(r"^FROM (\S+) AS (\S+)", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    assert ("train", "reward-models") in stages
    assert "/models" in map(target, reward["volumes"])


def test_only_services_that_need_the_secrets_mount_them() -> None:
    seeing = {
        name
        for name, service in services(FILES[0]).items()
        if "/secrets" in map(target, service.get("volumes", []))
    }
    assert seeing == {
        *("first-start", "redis", "gateway", "rollout", "learner", "rollout-cpu", "learner-cpu"),
        *("serving", "serving-cpu"),
        *("prometheus", "grafana"),
    }


def test_no_container_has_capabilities_or_a_writable_root() -> None:
    base = services(FILES[0])
    for file in FILES:
        for name, own in services(file).items():
            # An override file only changes services that docker-compose.yml defines completely.
            service = base.get(name, {}) | own
            if "image" not in service:
                continue
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
            assert not {"privileged", "cap_add", "pid", "ipc"} & service.keys(), name


@pytest.mark.parametrize(("answers", "code"), [("LOADING LOADING PONG", 0), ("LOADING x", 1)])
def test_the_check_of_redis_waits_while_it_loads(tmp_path: Path, answers: str, code: int) -> None:
    (tmp_path / "answers").write_text("\n".join(answers.split()) + "\n")
    program = tmp_path / "redis-cli"
    program.write_text(
        f"#!/bin/sh\nhead -n 1 {tmp_path}/answers\n"
        f"[ $(wc -l <{tmp_path}/answers) = 1 ] || sed -i 1d {tmp_path}/answers\n"
    )
    program.chmod(0o755)
    (tmp_path / "sleep").symlink_to("/bin/true")
    (kind, check) = services(FILES[0])["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    shell = ["sh", "-c", check.replace("$$", "$")]
    assert subprocess.run(shell, env=environment, stderr=subprocess.DEVNULL).returncode == code
