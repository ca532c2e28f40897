"""The process: how it starts, how it refuses to, and how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from services.runtime.api_key import authorization
from tests.integration.reward.conftest import KEY, ROOT, Service, alive, until
from tests.integration.reward.test_pool import arrived, gate, math, score
from tests.ports import own_ports


def run(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reward", *flags],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


async def test_sigterm_finishes_what_is_in_flight_and_takes_nothing_new(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start().ready()
    family = [service.fork_server, *service.workers]
    folder = tmp_path / "gate"
    async with service.client() as client:
        waiting = asyncio.create_task(score(client, gate(folder)))
        await until(lambda: arrived(folder), "the item is being judged")

        service.process.send_signal(signal.SIGTERM)
        await until(lambda: service.answers(503), "it is not ready")
        health = await client.get("/healthz")
        refused = await client.post("/v1/score", json={"items": [math(0, "5")]})
        (folder / "open").touch()

        (result,) = await waiting
    assert result["status"] == "correct"
    assert health.status_code == 200
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert service.process.wait(100) == 0
    await until(lambda: not any(map(alive, family)), "fork server and workers are gone")


async def test_a_drain_that_takes_too_long_answers_waiting_clients(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start("--drain-timeout", "0.1").ready()
    family = [service.fork_server, *service.workers]
    folder = tmp_path / "gate"
    async with service.client() as client:
        waiting = asyncio.create_task(client.post("/v1/score", json={"items": [gate(folder)]}))
        await until(lambda: arrived(folder), "the item is being judged")

        service.process.send_signal(signal.SIGTERM)
        response = await waiting

    assert response.status_code == 503
    assert "shutting down" in response.json()["detail"]
    assert service.process.wait(100) == 0
    await until(lambda: not any(map(alive, family)), "fork server and workers are gone")


async def test_ctrl_c_ends_it_like_sigterm(start: Callable[..., Service]) -> None:
    service = await start().ready()

    service.process.send_signal(signal.SIGINT)

    assert service.process.wait(100) == 0


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (("--port", "many"), {}, "port"),
        ((), {"HEADRACE_PORT": "70000"}, "port"),
        (("--workers", "-1"), {}, "workers"),
        (("--colour", "red"), {}, "--colour"),
    ],
)
def test_wrong_settings_end_the_process_and_are_named(
    flags: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    ended = run(*flags, **env)

    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


COLD = (
    "from reward.verifiers.base import Verifier, VerifierParams, correct\n"
    "class Cold(Verifier[VerifierParams]):\n"
    "    name, description, Params = 'cold', 'Never works.', VerifierParams\n"
    "    def warm(self): import no_such_package\n"
    "    def score(self, item, params): return correct()\n"
)


async def test_a_bad_verifier_disables_itself_and_the_others_go_on(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    (tmp_path / "cold.py").write_text(COLD)
    service = await start(
        "--verifiers=no.such:Verifier", f"--verifiers={tmp_path}/cold.py:Cold"
    ).ready()

    async with service.client() as client:
        (right,) = await score(client, math(0, "5"))
        ready = (await client.get("/readyz")).json()
        without = {"Authorization": "Bearer another"}
        seen_by_others = (await client.get("/readyz", headers=without)).json()
        listed = (await client.get("/v1/verifiers")).json()["verifiers"]
        uses = [{"verifier": "cold"}, {"verifier": "mine"}]
        checked = (await client.post("/v1/verifiers/check", json={"uses": uses})).json()

    assert right["status"] == "correct"
    assert seen_by_others == {"status": "ready"}
    assert set(ready["unavailable"]) == {"no.such:Verifier", "cold"}
    assert ready["unavailable"]["no.such:Verifier"].startswith("HEADRACE_VERIFIERS (--verifiers)")
    assert "no_such_package" in ready["unavailable"]["cold"]
    # A missing optional package is not the service's fault.
    lost = {one["name"] for one in listed if not one["available"]} - {"reasoning_gym"}
    assert lost == set(ready["unavailable"])
    cold, mine = [problem["message"] for problem in checked["problems"]]
    assert "no_such_package" in cold
    assert "'no.such:Verifier' cannot be loaded" in mine


async def test_sighup_loads_a_verifier_that_was_added(
    tmp_path: Path, start: Callable[..., Service]
) -> None:
    (port,) = own_ports("127.0.0.1", 1)
    file = tmp_path / "cold.py"
    service = await start("--port", str(port), f"--verifiers={file}:Cold").ready()
    family = [service.fork_server, *service.workers]
    folder = tmp_path / "gate"
    async with service.client() as client:
        assert "FileNotFoundError" in str((await client.get("/readyz")).json())
        waiting = asyncio.create_task(score(client, gate(folder)))
        await until(lambda: arrived(folder), "the item is being judged")
        file.write_text(COLD.replace("import no_such_package", "pass"))

        service.process.send_signal(signal.SIGHUP)
        await until(lambda: service.answers(503), "it is not ready")
        (folder / "open").touch()

        # The request in flight is finished first.
        assert (await waiting)[0]["status"] == "correct"
    await until(lambda: service.answers(200), "it is ready again")
    async with service.client() as client:
        (cold,) = await score(client, {"id": "0", "verifier": "cold", "completion": ""})
    assert cold["status"] == "correct"
    assert service.process.poll() is None
    await until(lambda: not any(map(alive, family)), "the earlier workers are gone")


async def test_a_verifier_that_is_added_scores_after_a_reload_of_the_same_process(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    (port,) = own_ports("127.0.0.1", 1)
    folder = ("--data", str(tmp_path), "--verifier-uploads", "true")
    service = await start("--port", str(port), *folder).ready()
    source = "def reward(completion):\n    return len(completion) < 3\n"
    async with service.client() as client:
        new = {"file": "short.py", "source": source}
        made = await client.post("/v1/verifiers", json=new)
    assert (made.status_code, made.json()["version"]) == (201, 1)

    def is_listed() -> bool:
        try:
            listed = httpx.get(f"{service.url}/v1/verifiers", headers=authorization(KEY))
        except httpx.TransportError:
            return False
        return '"short@1"' in listed.text

    await until(is_listed, "the verifier is there")
    await until(lambda: service.answers(200), "it is ready again")
    async with service.client() as client:
        item = {"verifier": "short", "completion": "no"}
        results = await score(client, {"id": "0", **item}, {"id": "1", **item, "completion": "yes"})
    assert [result["status"] for result in results] == ["correct", "wrong"]
    assert service.process.poll() is None


async def test_sigterm_during_a_reload_drains_and_ends_the_process(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start().ready()
    folder = tmp_path / "gate"
    async with service.client() as client:
        waiting = asyncio.create_task(score(client, gate(folder)))
        await until(lambda: arrived(folder), "the item is being judged")
        service.process.send_signal(signal.SIGHUP)
        await until(lambda: service.answers(503), "it is not ready")

        service.process.send_signal(signal.SIGTERM)
        # It still answers: the drain goes on.
        assert (await client.get("/readyz")).status_code == 503
        (folder / "open").touch()

        assert (await waiting)[0]["status"] == "correct"
    assert service.process.wait(100) == 0


def test_the_service_imports_neither_torch_nor_sympy() -> None:
    """The main process only parses and waits. SymPy belongs to the workers, torch to reward
    models."""
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
        "import sys, reward.workers.fork_server, reward.verifiers.registry as r;"
        "[v.warm() for v in r.build_registry().values()]; print('torch' in sys.modules)"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "False"
