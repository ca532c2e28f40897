"""`code` with its programs in another reward service, over a Unix socket."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.runtime import probe
from tests.integration.launch.conditions import eventually
from tests.integration.reward.conftest import Service, until

pytestmark = pytest.mark.usefixtures("isolation")

Start = Callable[..., Service]
SQUARE = {"inputs": ["3\n"], "outputs": ["9\n"]}


def item(completion: str, **params: Any) -> dict[str, Any]:
    return {
        "id": "0",
        "verifier": "code",
        "completion": completion,
        "answer": SQUARE,
        "params": params,
    }


async def score(client: httpx.AsyncClient, one: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/score", json={"items": [one]})
    assert response.status_code == 200, response.text
    (result,) = response.json()["results"]
    return dict(result)


@pytest.fixture(scope="module")
def both(
    isolation: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service, Path]]:
    """The sandbox, the service that asks it, and the socket between them. The last test that uses
    them kills the sandbox."""
    folder = tmp_path_factory.mktemp("sandbox")
    socket = folder / "s"
    sandbox = Service(folder, "--socket", str(socket))
    eventually(lambda: socket.exists() and answers(socket), what="the sandbox becomes ready")
    asking = Service(tmp_path_factory.mktemp("asking"), "--sandbox-socket", str(socket))
    yield sandbox, asking, socket
    for service in (asking, sandbox):
        service.end()


@pytest.fixture
async def asking(both: tuple[Service, Service, Path]) -> Service:
    return await both[1].ready()


@pytest.fixture
async def client(asking: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with asking.client() as client:
        yield client


def answers(socket: Path) -> bool:
    try:
        return probe.ask(f"unix:{socket}")[0] == 200
    except OSError:
        return False


async def test_programs_run_in_the_other_service(
    asking: Service, client: httpx.AsyncClient
) -> None:
    right = await score(client, item("print(int(input()) ** 2)"))
    slow = await score(client, item("while True: pass", time_limit=0.2, timeout=5))

    assert (right["status"], right["reward"]) == ("correct", 1.0)
    assert right["parts"] == [{"end": len("print(int(input()) ** 2)"), "score": 1.0}]
    assert (slow["status"], slow["detail"]) == ("wrong", "test 1 of 1: time_limit")
    source = "def grade(sample, item):\n    return len(sample['output_text']) + item['n']"
    grader = {"type": "python", "name": "p", "source": source}
    run = {"params": {"grader": grader}, "item": {"n": 2}, "sample": "abc"}
    assert (await client.post("/v1/graders/run", json=run)).json()["score"] == 5.0
    listed = (await client.get("/v1/verifiers")).json()["verifiers"]
    (code,) = (one for one in listed if one["name"] == "code")
    assert "time_limit" in code["params"]["properties"]
    assert code["notice"].startswith("programs run in the sandbox at ")
    refused = await client.post("/v1/score", json={"items": [item("", timelimit=1)]})
    assert refused.status_code == 422
    assert all(not line["event"].startswith("a verifier is available") for line in asking.lines())


async def test_the_policys_own_programs_run_there_too(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/python", json={"code": "print(6 * 7)"})

    assert response.json() == {"output": "42\n"}


async def test_references_are_checked_by_the_other_service(client: httpx.AsyncClient) -> None:
    use = {"verifier": "code", "rows": [{"answer": SQUARE}, {"answer": "print(1)"}]}

    response = await client.post("/v1/verifiers/check", json={"uses": [use]})

    (problem,) = response.json()["problems"]
    assert (problem["row"], problem["path"]) == (1, "rows.1")
    assert "asserts nothing" in problem["message"]


async def test_a_sandbox_that_is_killed_and_comes_back_loses_no_item(
    both: tuple[Service, Service, Path], client: httpx.AsyncClient, start: Start
) -> None:
    sandbox, _, socket = both
    sandbox.process.kill()
    sandbox.process.wait()

    # On the socket's file, which the killed one left.
    start("--socket", str(socket))
    result = await score(client, item("print(int(input()) ** 2)"))

    assert (result["status"], result["reward"]) == ("correct", 1.0)


async def test_a_sandbox_without_isolation_is_listed_as_unavailable(
    start: Start, tmp_path: Path
) -> None:
    socket = tmp_path / "s"
    start("--socket", str(socket), "--code-python", "/nonexistent/python")
    await until(lambda: socket.exists() and answers(socket), "the sandbox becomes ready")

    asking = await start("--sandbox-socket", str(socket)).ready()

    async with asking.client() as client:
        unavailable = (await client.get("/readyz")).json()["unavailable"]
    assert "cannot be started" in unavailable["code"]
