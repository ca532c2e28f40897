"""A real reward service on a free port, and the means to watch its processes."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.runtime.api_key import authorization

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEY = "hr-reward"
PROBES = ("probes:Gate", "probes:Bad")


NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "true"]


@pytest.fixture(scope="session")
def isolation() -> None:
    """Skip the test if this system permits no namespaces, which `code` needs."""
    if shutil.which("unshare") is None:
        pytest.skip("programs need namespaces, which `unshare` of util-linux would show")
    tried = subprocess.run(NAMESPACES, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")


async def until(condition: Callable[[], Any], what: str, seconds: float = 100.0) -> Any:
    """Return the first true value of `condition`. Fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)
    return value


def alive(pid: int) -> bool:
    """Tell whether that process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> list[int]:
    """The living children of a process."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in listed.split() if alive(int(child))]


class Service:
    """`python -m reward`, as a process of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log = folder / "reward.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reward", "--port", "0", "--workers", "2", *flags]
                + [f"--verifiers={probe}" for probe in PROBES],
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "HEADRACE_LOG_FORMAT": "json"}
                | {"HEADRACE_REWARD_KEY": KEY},
            )
        self.url = ""

    def lines(self) -> list[dict[str, Any]]:
        """The service's log."""
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"ended at once:\n{self.log.read_text()}"
        found = [line["url"] for line in self.lines() if line["event"] == "reward service ready"]
        self.url = found[0] if found else ""
        return bool(found) and self.answers(200)

    def answers(self, code: int) -> bool:
        """Tell whether the service answers, and reports its readiness with this code."""
        try:
            return httpx.get(f"{self.url}/readyz", verify=False).status_code == code
        except httpx.TransportError:
            return False

    async def ready(self) -> "Service":
        """Waits until the service accepts requests."""
        await until(self._ready, "the service becomes ready")
        return self

    @property
    def fork_server(self) -> int:
        """The process id of the workers' parent."""
        (pid,) = children(self.process.pid)
        return pid

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return children(self.fork_server)

    def client(self) -> httpx.AsyncClient:
        """Return an HTTP client for the service. It reads no certificates, which takes 30 ms."""
        return httpx.AsyncClient(
            base_url=self.url, headers=authorization(KEY), timeout=60, verify=False
        )

    def end(self) -> None:
        """Ends the service and its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a module that do not change it."""
    service = Service(tmp_path_factory.mktemp("reward"), "--body-limit", str(1 << 20))
    yield service
    service.end()


@pytest.fixture
async def client(shared: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the shared service."""
    await shared.ready()
    async with shared.client() as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts a service of the test's own, with flags."""
    services: list[Service] = []

    def start_one(*flags: str) -> Service:
        folder = tmp_path / f"service-{len(services)}"
        folder.mkdir()
        services.append(Service(folder, *flags))
        return services[-1]

    yield start_one
    for service in services:
        service.end()
