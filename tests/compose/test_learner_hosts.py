"""A learner on two hosts, each a container: either may die, and the run goes on when it is back."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.cli.host.demo import upload_sums
from tests.compose.installation import Installation, docker
from tests.ports import own_ports

pytestmark = pytest.mark.timeout(3600)

KILLS = 10
USER = 10001
"""User id inside the containers."""


@dataclass
class WithoutLearner(Installation):
    """The first machine, on a data folder that the learner's hosts share."""

    folder: Path = Path()
    redis_port: int = field(default_factory=lambda: own_ports("127.0.0.1", 1)[0])
    meeting_port: int = field(default_factory=lambda: own_ports("127.0.0.1", 1)[0])

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {
            "COMPOSE_FILE": "docker-compose.yml:deploy/compose.redis-port.yml",
            "HEADRACE_REDIS_LISTEN": "127.0.0.1",
            "HEADRACE_REDIS_PORT": str(self.redis_port),
            "HEADRACE_DATA_FOLDER": str(self.folder / "data"),
        }

    def up(self, rollouts: int = 1) -> None:
        scales = ("--scale", f"rollout-cpu={rollouts}", "--scale", "learner-cpu=0")
        self.compose("up", "--detach", "--wait", *scales)

    def host(self, node: int, *arguments: str) -> None:
        """`docker compose …` for one host of the learner."""
        given = {
            "COMPOSE_PROJECT_NAME": f"{self.project}-host-{node}",
            "COMPOSE_FILE": "deploy/compose.learner.yml",
            "HEADRACE_VERSION": self.tag,
            "HEADRACE_SECRETS": str(self.folder / "secrets"),
            "HEADRACE_DATA_FOLDER": str(self.folder / "data"),
            "HEADRACE_REDIS_URL": f"redis://127.0.0.1:{self.redis_port}/0",
            "HEADRACE_GATEWAY_URL": self.url,
            "HEADRACE_LEARNER_NODES": "2",
            "HEADRACE_LEARNER_NODE": str(node),
            # Both "hosts" use this machine's network.
            "HEADRACE_LEARNER_MASTER": "127.0.0.1",
            "HEADRACE_LEARNER_PORT": str(self.meeting_port),
            "HEADRACE_LEARNER_RANKS": "1",
        }
        docker("compose", "--profile", "cpu", *arguments, environment=given)


@pytest.fixture
def hosts(installation: Installation, tmp_path: Path) -> Iterator[WithoutLearner]:
    installation.down()
    both = WithoutLearner(tag=installation.tag, folder=tmp_path)
    for name in ("data", "secrets"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, USER, USER)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tmp_path.parents[1]):
            folder.chmod(0o755)
    both.up()
    for name in ("api-key", "redis-password"):
        both.compose("cp", f"gateway:/secrets/{name}", str(tmp_path / "secrets"))
    try:
        for node in range(2):
            both.host(node, "up", "--detach")
        yield both
    finally:
        for node in range(2):
            both.host(node, "down", "--volumes", "--timeout", "20")
        both.down()


def test_a_run_survives_the_death_of_either_host(hosts: WithoutLearner) -> None:
    api = hosts.api()
    upload_sums(api)
    few: dict[str, object] = {"training": {"max_steps": 20}}
    first = api.post("/v1/runs", json={"recipe": "demo_sft", "config": few})["id"]
    assert hosts.ended(first)["state"] == "succeeded"
    config = {
        "model": {"path": f"run:{first}"},
        "algorithm": {"prompts_per_step": 8, "samples_per_prompt": 4},
        "rollout": {"lease_seconds": 10},
        "training": {"max_steps": 2000, "checkpoint_every": 5},
    }
    run = api.post("/v1/runs", json={"recipe": "demo_grpo", "config": config})["id"]
    hosts.reaches(run, 2)
    back = []
    for kill in range(KILLS):
        at, node = hosts.step(run), kill % 2
        docker("kill", f"{hosts.project}-host-{node}-learner-cpu-1")
        began = time.monotonic()
        hosts.host(node, "up", "--detach")
        hosts.reaches(run, at + 1)
        back.append(time.monotonic() - began)
    print("seconds until the run was further than before:", [round(one) for one in back])
    assert max(back) < 60
    api.post(f"/v1/runs/{run}/cancel")
    hosts.ended(run)
    audit = json.loads(hosts.executed("gateway", "headrace", "audit", run, "--json"))
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
