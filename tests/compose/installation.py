"""One installation in containers, driven as an operator does: with `docker compose`, and through
the gateway's published port.

It has its own project name, port and image tag, so other installations of the machine are not
touched, and it removes everything that it made.
"""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from headrace.cli.client import Away, Gateway
from tests.ports import own_ports

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"
TARGETS = ("gateway", "reward", "sandbox")
TRAINING = ("rollout", "learner")
FINAL = ("succeeded", "failed", "cancelled")
KEY = re.compile(r"The API key, shown this once: (\S+)")


def docker(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a docker command. Raises AssertionError with its errors if it fails."""
    done = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def build(tag: str) -> None:
    """The images of the CPU profile, one target at a time. PIP_INDEX_URL and PIP_EXTRA_INDEX_URL of
    this environment are passed on."""
    given = [f"--build-arg={name}" for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")]
    given = [one for one in given if one.partition("=")[2] in os.environ]
    wanted = [(target, f"headrace-{target}:{tag}", "") for target in TARGETS]
    wanted += [(target, f"headrace-{target}:{tag}-cpu", "cpu") for target in TRAINING]
    for target, name, profile in wanted:
        docker(
            *("build", "--quiet", "--file", "deploy/Dockerfile", "--target", target, "--tag", name),
            *([f"--build-arg=PROFILE={profile}"] if profile else []),
            *given,
            ".",
            environment={"DOCKER_BUILDKIT": "1"},
        )


def until(condition: Callable[[], Any], what: str, within: float) -> Any:
    """Wait for a true value of `condition`. Raises AssertionError with `what` if none comes."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        threading.Event().wait(0.5)
    return value


@dataclass
class Installation:
    """See the module."""

    project: str = "headrace-test"
    tag: str = "test"
    port: int = field(default_factory=lambda: own_ports("127.0.0.1", 1)[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The operator's settings for .env."""
        return {
            "COMPOSE_PROJECT_NAME": self.project,
            "HEADRACE_VERSION": self.tag,
            "HEADRACE_PORT": str(self.port),
        }

    def compose(self, *arguments: str) -> str:
        """Return the output of `docker compose --profile cpu …`."""
        given = ("compose", "--profile", "cpu", *arguments)
        return docker(*given, environment=self.environment)

    def up(self, rollouts: int = 1) -> None:
        """Start all stopped services, and wait until every service is healthy."""
        self.compose("up", "--detach", "--wait", "--scale", f"rollout-cpu={rollouts}")

    def down(self) -> None:
        """Leave nothing behind: containers, networks, volumes."""
        self.compose("down", "--volumes", "--timeout", "20")

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return the running containers by service name, as `docker inspect` describes them."""
        ids = self.compose("ps", "--quiet").split()
        found = json.loads(docker("inspect", *ids))
        return {one["Name"].removeprefix(f"/{self.project}-"): one for one in found}

    def kill(self, name: str) -> None:
        """`docker kill` one container, such as `redis-1`."""
        docker("kill", f"{self.project}-{name}")

    def executed(self, service: str, *command: str) -> str:
        """Return the output of a command in a service's container."""
        return self.compose("exec", "--no-TTY", service, *command)

    def put(self, file: Path, service: str, path: str) -> None:
        """Write a file of this machine into the container of a service, as its user."""
        given = ("--profile", "cpu", "exec", "--no-TTY", service, "sh", "-c", f"cat >{path}")
        with file.open("rb") as content:
            subprocess.run(
                ["docker", "compose", *given],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdin=content,
                check=True,
            )

    def key(self) -> str:
        """The API key, from the log of the first start."""
        (key,) = KEY.findall(self.compose("logs", "--no-color", "first-start"))
        return str(key)

    # --- through the published port -------------------------------------------------------------

    def api(self) -> Gateway:
        """A client as `headrace` is one."""
        os.environ["HEADRACE_API_KEY"] = self.key()
        return Gateway(self.url)

    def get(self, path: str) -> Any:
        """Return the gateway's answer; wait until it answers."""
        api, found = self.api(), []

        def answered() -> bool:
            try:
                found.append(api.get(path))
            except Away:
                return False
            return True

        until(answered, f"the gateway answers {path}", 120)
        return found[0]

    def reaches(self, run: str, step: int, within: float = 400) -> None:
        """Wait until the run has trained this many batches."""

        def reached() -> bool:
            record = self.get(f"/v1/runs/{run}")
            assert record["state"] not in FINAL, f"{record['state']}: {record['reason']}"
            return bool(record["step"] >= step)

        until(reached, f"run {run} reaches step {step}", within)

    def ended(self, run: str, within: float = 900) -> dict[str, Any]:
        """The run, once it has ended."""
        until(lambda: self.get(f"/v1/runs/{run}")["state"] in FINAL, f"{run} ends", within)
        return dict(self.get(f"/v1/runs/{run}"))

    def step(self, run: str) -> int:
        """Batches that the run has trained."""
        return int(self.get(f"/v1/runs/{run}")["step"])

    def serving(self) -> int:
        """Workers whose vLLM has a version of the policy."""
        return sum(one["version"] is not None for one in self.get("/v1/workers")["workers"])

    def status(self, path: str) -> int:
        """The status of an answer to a request without a key."""
        return httpx.get(self.url + path, timeout=10).status_code
