"""The Compose files: what may be set is explained, and a secret is seen by whom it serves."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FILES = [ROOT / "docker-compose.yml", *sorted((ROOT / "deploy").glob("compose.*.yml"))]
# Of Compose itself.
COMPOSE = {"COMPOSE_PROFILES", "COMPOSE_FILE"}


def services(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    return found


def target(volume: str | dict[str, Any]) -> str:
    """Where a container sees a volume."""
    if isinstance(volume, dict):
        return str(volume["target"])
    # The name, which may hold colons of its own, ends with the last one before the target.
    return re.sub(r"\$\{[^}]*\}", "source", volume).split(":")[1]


def test_every_knob_is_explained_and_no_other_is() -> None:
    used = {name for file in FILES for name in re.findall(r"\$\{(\w+)", file.read_text())}
    explained = set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(), re.M))
    assert explained - COMPOSE == used


def test_what_is_said_to_be_the_default_is() -> None:
    said = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.M))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", FILES[0].read_text()))
    lists = {"HEADRACE_JUDGES", "HEADRACE_REWARD_MODELS", "HEADRACE_VERIFIERS"}
    paths = {"HEADRACE_SECRETS", "HEADRACE_REWARD_ENDPOINT_KEYS"}
    examples = lists | paths
    assert {n: said[n] for n in defaults if n not in examples} == {
        n: default for n, default in defaults.items() if n not in examples
    }


def test_the_key_and_the_password_are_seen_by_those_alone_who_show_them() -> None:
    seeing = {
        name
        for name, service in services(FILES[0]).items()
        if "/secrets" in map(target, service.get("volumes", []))
    }
    assert seeing == {
        *("first-start", "redis", "gateway", "rollout", "learner", "rollout-cpu", "learner-cpu"),
        *("prometheus", "grafana"),
    }


def test_no_container_has_rights_to_speak_of() -> None:
    for file in FILES:
        for name, service in services(file).items():
            if "image" not in service:
                continue
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
            assert not {"privileged", "cap_add", "pid", "ipc"} & service.keys(), name
