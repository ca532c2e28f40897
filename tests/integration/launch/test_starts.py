"""Each process that cannot start says why in one sentence and ends with its exit code."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from services.launch import LaunchError, Stack, UpOptions
from services.launch.plan import make_plan
from tests.integration.gateway.servers import RedisServer
from tests.integration.launch.conditions import eventually
from tests.integration.launch.small_parts import OBEDIENT, script
from tests.integration.learner.forked import Learner
from tests.ports import own_ports

ROOT = Path(__file__).parents[3]
MODULES = {
    "gateway": "services.gateway",
    "reward": "reward",
    "rollout": "rollout",
    "learner": "learner",
}
STORING = ["gateway", "rollout", "learner.rank"]
"""Processes that use Redis."""


def start(process: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start it and wait for its end. Somebody's gateway may have the usual port."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.run(
        [sys.executable, "-m", MODULES[process], *flags],
        cwd=ROOT,
        env=kept | {"HEADRACE_PORT": str(own_ports("127.0.0.1", 1)[0])} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def started(
    process: str, folder: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """As `start`; a rank of the learner is forked, since its imports take seconds."""
    if process in MODULES:
        return start(process, **variables)
    log = folder / "rank.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    code = Learner((process,), kept | variables, log).wait(200)
    return subprocess.CompletedProcess(process, code, "", log.read_text())


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


@pytest.mark.parametrize("process", STORING)
def test_a_redis_that_may_lose_work_is_refused(
    process: str, unsafe_redis: str, tmp_path: Path
) -> None:
    variables = {"HEADRACE_REDIS_URL": unsafe_redis, "HEADRACE_DATA": str(tmp_path)}
    said = sentence(started(process, tmp_path, variables), 2)
    assert "has appendfsync everysec, which may lose acknowledged work" in said
    assert "HEADRACE_ALLOW_UNSAFE_REDIS=true" in said


@pytest.fixture(scope="module")
def newer_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis whose data has an unknown version."""
    server = RedisServer(tmp_path_factory.mktemp("newer"))
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.set("headrace:schema", 2)
    yield server.url
    server.stop()


@pytest.mark.parametrize("process", STORING)
def test_no_process_starts_with_state_of_another_version(
    process: str, newer_redis: str, tmp_path: Path
) -> None:
    variables = {"HEADRACE_REDIS_URL": newer_redis, "HEADRACE_DATA": str(tmp_path)}
    said = sentence(started(process, tmp_path, variables), 2)
    assert f"cannot use Redis at {newer_redis}: the state in Redis has schema 2" in said
    assert "run the same version of Headrace everywhere" in said


NOWHERE = "redis://:hunter2@127.0.0.1:1/0"
NO_REDIS = "error: cannot use Redis at redis://:***@127.0.0.1:1/0: "


def test_without_redis_there_is_nothing_to_start(tmp_path: Path) -> None:
    ended = start("rollout", HEADRACE_REDIS_URL=NOWHERE, HEADRACE_DATA=str(tmp_path))

    said = sentence(ended, 2)
    assert said.startswith(NO_REDIS)
    assert "name another with --redis-url" in said
    assert "hunter2" not in ended.stderr + ended.stdout


def test_a_learner_that_no_restart_can_help_ends_headrace_up_with_its_error(
    tmp_path: Path,
) -> None:
    """Its supervisor alone would restart it without end."""
    options = UpOptions(data=tmp_path, parts=frozenset({"learner"}), redis_url=NOWHERE)
    plan = make_plan(options, tmp_path, place=lambda rollouts, ranks: None, devices=lambda _: ())
    (part,) = plan.parts
    once = UpOptions(data=tmp_path, start_tries=1)
    parts = (script("gateway", OBEDIENT, stage=0), part)
    with Stack(once, planner=lambda o, d: replace(plan, parts=parts)) as stack:
        eventually(lambda: not stack.processes, within=200)
        with pytest.raises(LaunchError, match="learner cannot start: cannot use Redis") as ended:
            stack.check()
    assert NO_REDIS.removeprefix("error: ") in str(ended.value)
    said = stack.log("learner").read_text()
    assert "name another with --redis-url" in said
    assert "Traceback" not in said
    assert "hunter2" not in said + str(ended.value)


def test_a_learner_that_is_started_again_waits_for_its_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    log = tmp_path / "learner.log"
    variables = {
        "HEADRACE_REDIS_URL": server.url,
        "HEADRACE_DATA": str(tmp_path / "data"),
        "HEADRACE_STARTS": "1",
    }
    learner = Learner(("learner.rank",), os.environ | variables, log)
    try:
        eventually(lambda: log.exists() and "waiting for Redis" in log.read_text())
        server.start()
        eventually(lambda: "learner ready" in log.read_text())
        learner.terminate()
        assert learner.wait() == 0
        assert "Traceback" not in log.read_text()
    finally:
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        server.stop()


@pytest.mark.parametrize("process", ["gateway", "reward"])
def test_a_port_in_use_is_named_with_the_flag_to_change_it(process: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = start(process, "--port", str(port))

    assert sentence(ended, 1) == (
        f"error: cannot listen on 127.0.0.1:{port} (Address already in use): stop what listens "
        "there, or choose another port with --port"
    )
    assert process == "reward" or len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("process", MODULES)
def test_a_setting_that_makes_no_sense_is_named_as_flag_and_variable(process: str) -> None:
    said = sentence(start(process, HEADRACE_REDIS_URL="my-password@host:6379"), 2)

    assert said.startswith("error: --redis-url (HEADRACE_REDIS_URL): must begin with redis://")
    assert "my-password" not in said
