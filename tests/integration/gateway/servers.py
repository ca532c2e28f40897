"""The processes that these tests talk to, as a user would start them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from services.launch.redis import bundled_server
from services.runtime.api_key import API_KEY, authorization
from services.store import Store
from tests.ports import own_ports

UPLOAD_LIMIT = 200_000

InStore = Callable[[Callable[[Store], Awaitable[object]]], None]
Headrace = Callable[..., subprocess.CompletedProcess[str]]


class RedisServer:
    """redis-server on a port that stays the same over restarts."""

    def __init__(self, folder: Path, fsync: str = "always") -> None:
        self.folder = folder
        self.fsync = fsync
        (self.port,) = own_ports("127.0.0.1", 1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        server = bundled_server()
        options = ("--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", self.fsync)
        self._process = subprocess.Popen(
            [str(server), "--port", str(self.port), "--dir", str(self.folder), *options],
            stdout=subprocess.DEVNULL,
        )
        retry = redis.Redis.from_url(
            self.url, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2000)
        )
        with retry:
            retry.ping()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called after the last `start`."""
        return self._process is None

    def freeze(self) -> None:
        """Have it answer nothing while its connections stay, as a host that is gone does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it and wait for its end."""
        if self._process is not None:
            self.thaw()
            self._process.terminate()
            self._process.wait(60)
            self._process = None


class GatewayProcess:
    """`python -m services.gateway` on any free port."""

    def __init__(
        self,
        data: Path,
        redis_url: str,
        *,
        module: Sequence[str] = ("services.gateway",),
        **settings: str,
    ) -> None:
        """`settings`: more of the environment, e.g. HEADRACE_API_KEY. `module`: what `python -m`
        runs."""
        self.data = data
        (port,) = own_ports("127.0.0.1", 1)
        self.url = f"http://127.0.0.1:{port}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")} | {
            "HEADRACE_REDIS_URL": redis_url,
            "HEADRACE_DATA": str(data),
            "HEADRACE_REWARD_URL": "http://127.0.0.1:1",
            "HEADRACE_UPLOAD_LIMIT": str(UPLOAD_LIMIT),
            "HEADRACE_REPORTS": "false",
            **settings,
        }
        data.parent.mkdir(parents=True, exist_ok=True)
        self._said = data.with_suffix(".log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *module, "--port", str(port)],
            env=environment,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        """Fails the test, with its log, if it ends before it answers, or needs three minutes."""
        with httpx.Client(transport=httpx.HTTPTransport(verify=False), timeout=60) as client:
            for _ in range(1800):
                try:
                    client.get(f"{self.url}/healthz").raise_for_status()
                except httpx.TransportError:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(0.1)
                        break
                else:
                    return
        pytest.fail(f"the gateway at {self.url} does not answer; its log:\n{self.said[-8000:]}")

    @property
    def key(self) -> str:
        """The API key that the gateway made."""
        return (self.data / API_KEY).read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request: the key."""
        return authorization(self.key)

    def client(self) -> httpx.Client:
        """An HTTP client with the key. Without certificates, which take 30 ms to read."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60, verify=False)

    @property
    def said(self) -> str:
        """The gateway's output and log."""
        return self.data.with_suffix(".log").read_text()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def freeze(self) -> None:
        """Have it do nothing while its connections stay."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End it and wait for its end. Returns its exit code."""
        self.thaw()
        self._process.send_signal(with_signal)
        code = self._process.wait(60)
        self._said.close()
        return code


def upload(api: httpx.Client, name: str, content: bytes, **form: Any) -> httpx.Response:
    """POST a file as the dataset `name`."""
    filename = form.pop("filename", f"{name}.jsonl")
    return api.post(
        "/v1/datasets", data={"name": name, **form}, files={"file": (filename, content)}
    )


def warnings(run: dict[str, Any]) -> list[str]:
    """Those of a run without the first, which is of the reward service: none is started here."""
    away, *others = run["warnings"]
    assert away.startswith("rewards: the verifiers and reference answers were not checked")
    return others


def problems(response: httpx.Response) -> dict[str, str]:
    """Return the messages of a 422 answer, by key."""
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return {item["path"]: item["message"] for item in response.json()["problems"]}


def events_of(
    api: httpx.Client, run: str, after: str | None = None, **query: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, event) until the stream ends."""
    headers = {"Last-Event-ID": after} if after else {}
    with api.stream("GET", f"/v1/runs/{run}/events", headers=headers, params=query) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def queued(headrace: Headrace, *arguments: str) -> str:
    """Submit a run of the dataset `cli-sums` (the fixture `rows`). Returns its id."""
    done = headrace("submit", "grpo", "--set", "data.dataset=cli-sums", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    run: str = json.loads(done.stdout)["id"]
    return run
