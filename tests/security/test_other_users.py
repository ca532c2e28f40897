"""Another user of the machine gets nowhere: every port asks for a key, no file can be read.

With root the installation is `daemon`'s, and the other user is `nobody`. Without it the same
questions are asked by this user, and the modes of files and folders show that others are kept out.
"""

import contextlib
import json
import os
import re
import signal
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis

from headrace.death_signal import die_with
from rollout.vllm.process.server import make_server_folder
from rollout.vllm_plugin.routes import OnlyRoutesInUse
from services.launch import Stack, UpOptions
from services.launch.up import _page
from services.runtime.api_key import authorization
from services.runtime.process import INSTANCE, marked
from tests.integration.launch.conditions import eventually
from tests.security.listening import abstract_sockets, listening_ports, unix_sockets

NOBODY = 65534 if os.geteuid() == 0 else 0
DAEMON = 1
ROOT = Path(__file__).parents[2]
SECRETS = ("api-key", "reward-key")


def asked(questions: list[list[str]]) -> list[str]:
    """Return the answers that another user gets."""
    done = subprocess.run(
        [sys.executable, "-I", Path(__file__).with_name("stranger.py"), str(NOBODY)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[str] = json.loads(done.stdout)
    return answers


@dataclass
class Up:
    """A running `headrace up`."""

    data: Path
    gateway_url: str
    output: Path
    pids: list[int]

    def key(self, name: str) -> str:
        return (self.data / name).read_text().strip()

    def http(self, method: str, path: str) -> str:
        """One request without a key, to whatever port."""
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that others may enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="headrace-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def as_ordinary_user(folder: Path) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return the interpreter, the environment and the options of `Popen` for an installation of an
    ordinary user in `folder`. It stays this user's if `daemon` can use no interpreter or not read
    this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    if not NOBODY:
        return sys.executable, environment, {}
    paths = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    theirs = environment | {"PYTHONPATH": paths, "HOME": str(folder)}
    user: dict[str, Any] = {"user": DAEMON, "group": DAEMON, "extra_groups": []}
    system = f"/usr/bin/python3.{sys.version_info.minor}"
    for python in (sys.executable, system):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            imports = [python, "-c", "import headrace.cli.main, uvicorn"]
            subprocess.run(imports, check=True, cwd=folder, env=theirs, **user)
            for path in (folder, *folder.iterdir()):
                os.chown(path, DAEMON, DAEMON)
            return python, theirs, user
    return sys.executable, environment, {}


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    """All parts that listen for others, as the command starts them."""
    data, output = folder / "data", folder / "output.txt"
    # Made by an earlier version, or by hand: it has to be closed.
    data.mkdir(mode=0o755)
    python, environment, user = as_ordinary_user(folder)
    arguments = ("up", "--data", str(data), "--port", "0", "--reward-port", "0")
    with output.open("w") as said:
        process = subprocess.Popen(
            [python, "-m", "headrace", *arguments, "--only", "redis,gateway,reward"],
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with(os.getpid()),
            env=environment,
            **user,
        )
    try:
        eventually(lambda: "Ctrl-C stops" in output.read_text() or process.poll() is not None)
        text = output.read_text()
        found = re.search(r"HEADRACE_GATEWAY_URL=(\S+)", text)
        assert found, text
        instance = json.loads((data / "up.json").read_text())["instance"]
        yield Up(data, found[1], output, [process.pid, *marked({INSTANCE: instance})])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_every_port_asks_for_a_key(up: Up) -> None:
    ports = listening_ports(up.pids)
    assert len(ports) == 2, "gateway and reward service; Redis and vLLM have none"
    for host, port in ports:
        assert host == "127.0.0.1"
        paths = (
            "/metrics",
            "/v1/runs",
            "/v1/score",
            "/nothing",
            "//v1/runs",
            "/v1/session/../runs",
        )
        for answer in asked([["tcp", host, str(port), up.http("GET", path)] for path in paths]):
            assert answer.startswith("HTTP/1.1 401"), answer


def test_every_route_of_the_api_needs_a_key(up: Up) -> None:
    described = httpx.get(f"{up.gateway_url}/openapi.json").json()["paths"]
    routes = [
        (method.upper(), re.sub(r"{\w+}", "x", path))
        for path, methods in described.items()
        for method in methods
    ]
    assert len(routes) > 20
    host, port = up.gateway_url.removeprefix("http://").split(":")
    answers = asked([["tcp", host, port, up.http(*route)] for route in routes])
    opened = [route for route, said in zip(routes, answers, strict=True) if " 401 " not in said]
    assert opened == [("GET", "/healthz"), ("GET", "/readyz")]


def test_with_their_keys_gateway_and_reward_service_answer(up: Up) -> None:
    for (_, port), name in zip(sorted(listening_ports(up.pids)), SECRETS, strict=False):
        answers = {
            httpx.get(
                f"http://127.0.0.1:{port}/metrics", headers=authorization(up.key(one))
            ).status_code
            for one in SECRETS
        }
        assert answers == {200, 401}, f"each takes its own key only ({name})"


def test_a_link_that_logs_in_is_printed_to_a_terminal_alone_and_works_once(up: Up) -> None:
    assert "login=" not in up.output.read_text()
    plan = SimpleNamespace(gateway_url=up.gateway_url)
    folder = SimpleNamespace(path=up.data)
    shown = _page(plan, folder, on_terminal=True)["page"]  # type: ignore[arg-type]
    address, token = shown.split()[0].split("/#login=")
    assert address == up.gateway_url
    for status in (204, 401):
        with httpx.Client(base_url=address) as browser:
            entered = browser.post("/v1/session", json={"key": token})
            assert entered.status_code == status
            assert browser.get("/v1/runs").status_code == (200 if status == 204 else 401)


def test_no_socket_lets_another_user_in(up: Up) -> None:
    paths = unix_sockets(up.pids)
    assert up.data / "redis" / "redis.sock" in paths
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0, path
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    if NOBODY:
        questions = [["unix", str(path), "PING\r\n"] for path in paths]
        assert set(asked(questions)) == {"PermissionError"}
        named = abstract_sockets(up.pids)
        assert any("headrace-up-" in name for name in named)
        request = json.dumps({"redis": True}) + "\n"
        assert set(asked([["unix", name, request] for name in named])) <= {
            "",
            "BrokenPipeError",
            "ConnectionResetError",
        }


def test_no_file_of_the_data_folder_can_be_read_by_another_user(up: Up) -> None:
    opened = [p for p in [up.data, *up.data.rglob("*")] if p.stat().st_mode & 0o077]
    assert opened == []
    if NOBODY:
        paths = [up.data, *(up.data / name for name in (*SECRETS, "redis/redis.conf", "up.json"))]
        assert set(asked([["read", str(path)] for path in paths])) == {"PermissionError"}


def test_no_secret_stands_in_a_list_of_processes(up: Up) -> None:
    secrets = [up.key(name) for name in SECRETS]
    for pid in up.pids:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in command for secret in secrets), command


def test_no_process_can_be_read_or_ended_by_another_user(up: Up) -> None:
    if not NOBODY:
        pytest.skip("one user alone")
    files = ("environ", "mem", "maps", "fd", "cwd/.")
    questions = [["read", f"/proc/{pid}/{file}"] for pid in up.pids for file in files]
    questions += [["kill", str(pid)] for pid in up.pids]
    assert set(asked(questions)) == {"PermissionError"}
    assert len(marked({INSTANCE: json.loads((up.data / "up.json").read_text())["instance"]})) > 3


def test_no_secret_is_logged(up: Up) -> None:
    logs = "".join(file.read_text() for file in (up.data / "logs").iterdir())
    assert not any(up.key(name) in logs for name in SECRETS)


def test_a_requested_port_of_redis_needs_the_password(tmp_path: Path) -> None:
    options = UpOptions(data=tmp_path, parts=frozenset({"redis"}), redis_port=0)
    with Stack(options) as stack:
        ((host, port),) = listening_ports(list(stack.processes.values()))
        (answer,) = asked([["tcp", host, str(port), "HGETALL headrace:api-keys\r\n"]])
        assert answer.startswith("-NOAUTH")
        password = (tmp_path / "redis-password").read_text().strip()
        assert stat.S_IMODE((tmp_path / "redis-password").stat().st_mode) == 0o600
        with redis.Redis(host=host, port=port, password=password) as client:
            assert client.ping()
        command = Path(f"/proc/{stack.processes['redis']}/cmdline").read_text()
        assert password not in command


def test_the_folder_of_vllms_socket_is_closed_to_others() -> None:
    made = make_server_folder()
    try:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        if NOBODY:
            assert asked([["read", str(made)]]) == ["PermissionError"]
    finally:
        made.rmdir()


@pytest.mark.parametrize(
    ("path", "sleeps", "status"),
    [
        *(("/health", False, 200), ("/collective_rpc", False, 404)),
        *(("/v1/completions", False, 404), ("/pause/../x", False, 404)),
        *(("/sleep", False, 404), ("/wake_up", False, 404)),
        *(("/sleep", True, 200), ("/wake_up", True, 200), ("/collective_rpc", True, 404)),
    ],
)
async def test_vllm_answers_only_on_the_routes_in_use(path: str, sleeps: bool, status: int) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body"})  # type: ignore[operator]

    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    server = SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(enable_sleep_mode=sleeps)))
    await OnlyRoutesInUse(app)({"type": "http", "path": path, "app": server}, receive, send)
    assert sent[0]["status"] == status
