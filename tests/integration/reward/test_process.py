"""The process: how it starts, how it refuses to, and how it ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.reward.conftest import ROOT, Service, alive, until
from tests.integration.reward.test_pool import arrived, gate, math, score


def run(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reward", *flags],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_sigterm_finishes_what_is_in_flight_and_takes_nothing_new(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start().ready()
    family = [service.nursery, *service.workers]
    folder = tmp_path / "gate"
    async with service.client() as client:
        waiting = asyncio.create_task(score(client, gate(folder)))
        await until(lambda: arrived(folder), "the item is being judged")

        service.process.send_signal(signal.SIGTERM)
        await until(
            lambda: httpx.get(f"{service.url}/readyz").status_code == 503, "it is not ready"
        )
        health = await client.get("/healthz")
        refused = await client.post("/v1/score", json={"items": [math(0, "5")]})
        (folder / "open").touch()

        (result,) = await waiting
    assert result["status"] == "correct"
    assert health.status_code == 200
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert service.process.wait(20) == 0
    assert not any(map(alive, family))


async def test_a_drain_that_takes_too_long_tells_those_who_wait(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start("--drain-timeout", "0.1").ready()
    family = [service.nursery, *service.workers]
    folder = tmp_path / "gate"
    async with service.client() as client:
        waiting = asyncio.create_task(client.post("/v1/score", json={"items": [gate(folder)]}))
        await until(lambda: arrived(folder), "the item is being judged")

        service.process.send_signal(signal.SIGTERM)
        response = await waiting

    assert response.status_code == 503
    assert "shutting down" in response.json()["detail"]
    assert service.process.wait(20) == 0
    assert not any(map(alive, family))


async def test_ctrl_c_ends_it_like_sigterm(start: Callable[..., Service]) -> None:
    service = await start().ready()

    service.process.send_signal(signal.SIGINT)

    assert service.process.wait(20) == 0


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])

        ended = run("--port", port)

    assert ended.returncode == 1
    assert port in ended.stderr
    assert "--port" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (("--port", "many"), {}, "port"),
        ((), {"HEADRACE_PORT": "70000"}, "port"),
        (("--workers", "-1"), {}, "workers"),
        (("--colour", "red"), {}, "--colour"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    flags: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    ended = run(*flags, **env)

    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_own_verifier_that_cannot_be_imported_is_named() -> None:
    ended = run("--port", "0", "--verifiers", "no.such:Verifier")

    assert ended.returncode == 1
    assert "no.such:Verifier" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_service_imports_neither_torch_nor_sympy() -> None:
    """The main process only parses and waits; SymPy belongs to the workers, torch to nobody yet."""
    code = (
        "import sys, reward.__main__, reward.verifiers.registry as r; r.build_registry();"
        "print([m for m in ('torch', 'sympy', 'vllm', 'redis') if m in sys.modules])"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "[]"


def test_workers_import_no_torch() -> None:
    code = (
        "import sys, reward.nursery, reward.verifiers.registry as r;"
        "[v.warm() for v in r.build_registry().values()]; print('torch' in sys.modules)"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "False"
