"""`docker compose --profile cpu up` starts a closed installation, which works as README says."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compose.installation import BASE, KEY, ROOT, TARGETS, Installation, docker

pytestmark = pytest.mark.timeout(3600)

MIB = 1 << 20
ALWAYS = {"first-start", "redis", "gateway", "reward", "sandbox"}
ASK = """
import json, sys, urllib.request
body = json.dumps({"items": json.load(sys.stdin)}).encode()
request = urllib.request.Request(
    "http://127.0.0.1:8002/v1/score",
    body,
    {
        "content-type": "application/json",
        "authorization": "Bearer " + open("/reward-secrets/reward-key").read().strip(),
    },
)
print(urllib.request.urlopen(request).read().decode())
"""
ESCAPES = """
import socket
def tried(what):
    try:
        what()
        return "reached"
    except OSError:
        return "refused"
print(tried(lambda: socket.create_connection(("8.8.8.8", 53), 1)))
print(tried(lambda: socket.getaddrinfo("redis", 6379)))
print(tried(lambda: open("/run/headrace/sandbox.sock")))
print(tried(lambda: open("/etc/passwd")))
"""


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        ([], {"rollout", "learner"}),
        (["gpu", "monitoring"], {"rollout", "learner", "prometheus", "grafana"}),
        (["cpu"], {"rollout-cpu", "learner-cpu"}),
        (["cpu", "monitoring"], {"rollout-cpu", "learner-cpu", "prometheus", "grafana"}),
    ],
)
def test_a_profile_says_what_is_started(profiles: list[str], expected: set[str]) -> None:
    flags = [f"--profile={profile}" for profile in profiles]
    assert set(docker("compose", *flags, "config", "--services").split()) == ALWAYS | expected


def test_workers_on_another_machine_reach_the_addresses_they_get(tmp_path: Path) -> None:
    told = {
        "HEADRACE_REDIS_URL": "redis://10.0.0.5:6379/0",
        "HEADRACE_GATEWAY_URL": "http://10.0.0.5:8000",
        "HEADRACE_SECRETS": str(tmp_path),
        "HEADRACE_REWARD_ENDPOINT_KEYS": str(tmp_path / "keys.json"),
    }
    given = ("compose", "-f", "deploy/compose.rollout.yml", "config", "--format", "json")
    services = json.loads(docker(*given, environment=told))["services"]
    mounted = {
        name: {one["target"]: one["source"] for one in service["volumes"]}
        for name, service in services.items()
    }
    assert services.keys() == {"rollout", "reward", "sandbox"}
    for name in ("HEADRACE_REDIS_URL", "HEADRACE_GATEWAY_URL"):
        assert services["rollout"]["environment"][name] == told[name]
    assert mounted["rollout"]["/secrets"] == str(tmp_path)
    assert mounted["reward"]["/secrets/endpoint-keys.json"] == str(tmp_path / "keys.json")
    assert mounted["reward"]["/reward-secrets"] == str(tmp_path / "reward")
    assert "/secrets" not in mounted["reward"]
    assert {name for name, service in services.items() if "ports" in service} == set()


def test_images_without_torch_are_small(installation: Installation) -> None:
    """The official python:3.11-slim has 130 MB; the base here may be another image."""
    base = int(docker("image", "inspect", BASE, "--format", "{{.Size}}"))
    # The gateway reads tokenizers: transformers takes 160 MB.
    for target, most in {"gateway": 620e6, "reward": 320e6, "sandbox": 320e6}.items():
        size = docker("image", "inspect", f"headrace-{target}:test", "--format", "{{.Size}}")
        assert 130e6 + int(size) - base < most, target


def test_images_say_what_they_are_and_hold_no_secret(installation: Installation) -> None:
    names = [f"headrace-{target}:test" for target in TARGETS]
    for name in [*names, "headrace-rollout:test-cpu", "headrace-learner:test-cpu"]:
        (image,) = json.loads(docker("image", "inspect", name))
        config = image["Config"]
        assert config["User"] == "10001:10001", name
        assert config["Healthcheck"]["Test"], name
        assert config["Entrypoint"] == ["tini", "--"], name
        assert config["Labels"]["org.opencontainers.image.title"] == "Headrace"
        text = docker("history", "--no-trunc", name) + json.dumps(config["Env"])
        for wrong in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PASSWORD", "API_KEY"):
            assert f"{wrong}=" not in text, (name, wrong)


def test_the_quick_start_of_the_readme(installation: Installation) -> None:
    text = (ROOT / "README.md").read_text()
    (commands,) = re.findall(r"<!-- tests/compose runs this -->\n```\n(.*?)```", text, re.S)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=ROOT,
        env=os.environ | installation.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    verdict = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert verdict["accuracy_after"] > verdict["accuracy_before"] + 0.3


def test_the_key_is_shown_once(running: Installation) -> None:
    running.key()
    running.up()
    assert len(KEY.findall(running.compose("logs", "--no-color", "first-start"))) == 1


def test_only_the_gateways_port_answers(running: Installation) -> None:
    published = {
        (name, port, tuple(binding["HostPort"] for binding in bindings))
        for name, one in running.containers().items()
        for port, bindings in (one["NetworkSettings"]["Ports"] or {}).items()
        if bindings
    }
    assert published == {("gateway-1", "8000/tcp", (str(running.port),))}
    assert running.status("/readyz") == 200
    assert running.status("/v1/runs") == running.status("/metrics") == 401
    for port in (6379, 8002):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 1).close()


def test_redis_and_the_workers_are_on_a_network_that_leads_nowhere(running: Installation) -> None:
    inside, outside = f"{running.project}_inside", f"{running.project}_outside"
    (network,) = json.loads(docker("network", "inspect", inside))
    assert network["Internal"] is True
    networks = {
        name: set(one["NetworkSettings"]["Networks"]) for name, one in running.containers().items()
    }
    assert networks["redis-1"] == networks["rollout-cpu-1"] == {inside}
    assert networks["gateway-1"] == {inside, outside}
    assert networks["sandbox-1"] == {"none"}


def test_containers_are_nobody_special_and_cannot_change_themselves(running: Installation) -> None:
    containers = running.containers()
    assert set(containers) == {
        *("gateway-1", "learner-cpu-1", "redis-1", "reward-1", "rollout-cpu-1", "sandbox-1")
    }
    for name, one in containers.items():
        host = one["HostConfig"]
        assert host["ReadonlyRootfs"] is True, name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["CapAdd"], name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        assert host["Privileged"] is False, name
        service = name.rpartition("-")[0]
        assert running.executed(service, "id", "-u").strip() != "0", name
        with pytest.raises(AssertionError, match="Read-only file system"):
            running.executed(service, "touch", "/usr/file")


def test_programs_run_in_a_container_without_a_network(running: Installation) -> None:
    devices = running.executed("sandbox", "ls", "/sys/class/net").split()
    items = [
        {
            "id": str(number),
            "verifier": "code",
            "completion": f"```python\n{program}\n```",
            "answer": {"inputs": ["3\n"], "outputs": [expected]},
        }
        for number, (program, expected) in enumerate(
            [("print(int(input()) ** 2)", "9\n"), (ESCAPES, "refused\n" * 4)]
        )
    ]
    asked = subprocess.run(
        ["docker", "compose", "--profile", "cpu", "exec", "-T", "reward", "python", "-c", ASK],
        cwd=ROOT,
        env=os.environ | running.environment,
        input=json.dumps(items),
        capture_output=True,
        text=True,
        check=True,
    )

    assert devices == ["lo"]
    results = json.loads(asked.stdout)["results"]
    assert [(one["status"], one["detail"]) for one in results] == [
        ("correct", "passes 1 of 1 tests"),
        ("correct", "passes 1 of 1 tests"),
    ]


def test_a_stop_drains_within_its_grace_period(running: Installation) -> None:
    running.compose("stop")
    for name, one in running_and_stopped(running).items():
        # 137 is a kill.
        assert one["State"]["ExitCode"] != 137, name
    running.up()


def running_and_stopped(installation: Installation) -> dict[str, dict[str, Any]]:
    ids = installation.compose("ps", "--all", "--quiet").split()
    return {one["Name"]: one for one in json.loads(docker("inspect", *ids))}
