"""Each process that cannot start says why in one sentence and ends with its exit code."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.launch import LaunchError, Stack, UpOptions
from services.launch.options import free_ports
from services.launch.plan import make_plan
from tests.integration.gateway.servers import RedisServer
from tests.integration.launch.conditions import eventually
from tests.integration.launch.small_parts import OBEDIENT, script

ROOT = Path(__file__).parents[3]
MODULES = {
    "gateway": "services.gateway",
    "reward": "reward",
    "rollout": "rollout",
    "learner": "learner",
}


def start(process: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start it and wait for its end. Somebody's gateway may have the usual port."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.run(
        [sys.executable, "-m", MODULES[process], *flags],
        cwd=ROOT,
        env=kept | {"HEADRACE_PORT": str(free_ports("127.0.0.1", 1)[0])} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def sentence(ended: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a user reads."""
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended.stderr
    return lines[0]


@pytest.fixture(scope="module")
def unsafe_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), fsync="everysec")
    server.start()
    yield server.url
    server.stop()


@pytest.mark.parametrize("process", ["gateway", "rollout", "learner"])
def test_a_redis_that_may_lose_work_is_refused(
    process: str, unsafe_redis: str, tmp_path: Path
) -> None:
    ended = start(process, HEADRACE_REDIS_URL=unsafe_redis, HEADRACE_DATA=str(tmp_path))

    said = sentence(ended, 2)
    assert "has appendfsync everysec, which may lose acknowledged work" in said
    assert "HEADRACE_ALLOW_UNSAFE_REDIS=true" in said


@pytest.mark.parametrize("process", ["rollout", "learner"])
def test_without_redis_there_is_nothing_to_start(process: str, tmp_path: Path) -> None:
    ended = start(
        process,
        HEADRACE_REDIS_URL="redis://:hunter2@127.0.0.1:1/0",
        HEADRACE_DATA=str(tmp_path),
    )

    said = sentence(ended, 2)
    assert said.startswith("error: cannot use Redis at redis://:***@127.0.0.1:1/0: ")
    assert "name another with --redis-url" in said
    assert "hunter2" not in ended.stderr + ended.stdout


def test_a_learner_that_no_restart_can_help_ends_headrace_up_with_its_error(
    tmp_path: Path,
) -> None:
    """Its supervisor alone would restart it without end."""
    options = UpOptions(
        data=tmp_path, parts=frozenset({"learner"}), redis_url="redis://127.0.0.1:1/0"
    )
    plan = make_plan(options, tmp_path, place=lambda rollouts, ranks: None, devices=lambda _: ())
    (part,) = plan.parts
    once = UpOptions(data=tmp_path, start_tries=1)
    parts = (script("gateway", OBEDIENT, stage=0), part)
    with Stack(once, planner=lambda o, d: replace(plan, parts=parts)) as stack:
        eventually(lambda: not stack.processes, within=60)
        with pytest.raises(LaunchError, match=r"learner exited with code 2[\s\S]*error: .*redis"):
            stack.check()


def test_a_learner_that_is_started_again_waits_for_its_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    log = tmp_path / "learner.log"
    variables = {
        "HEADRACE_REDIS_URL": server.url,
        "HEADRACE_DATA": str(tmp_path / "data"),
        "HEADRACE_STARTS": "1",
    }
    with log.open("w") as output:
        learner = subprocess.Popen(
            [sys.executable, "-m", "learner.rank"],
            cwd=ROOT,
            env=os.environ | variables,
            stderr=output,
        )
    try:
        eventually(lambda: "waiting for Redis" in log.read_text(), within=60)
        server.start()
        eventually(lambda: "learner ready" in log.read_text(), within=30)
        learner.terminate()
        assert learner.wait(30) == 0
        assert "Traceback" not in log.read_text()
    finally:
        learner.kill()
        learner.wait()
        server.stop()


@pytest.mark.parametrize("process", ["gateway", "reward"])
def test_a_port_in_use_is_named_with_the_flag_to_change_it(process: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = sentence(start(process, "--port", str(port)), 1)

    assert said == (
        f"error: cannot listen on 127.0.0.1:{port} (Address already in use): stop what listens "
        "there, or choose another port with --port"
    )


@pytest.mark.parametrize("process", MODULES)
def test_a_setting_that_makes_no_sense_is_named_as_flag_and_variable(process: str) -> None:
    said = sentence(start(process, HEADRACE_REDIS_URL="my-password@host:6379"), 2)

    assert said.startswith("error: --redis-url (HEADRACE_REDIS_URL): must begin with redis://")
    assert "my-password" not in said
