"""The promises of the pool, with real processes: items that hang, crash or eat memory cost only
their own deadline, and deaths from outside cost nothing.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.runtime.api_key import authorization
from tests.integration.reward.conftest import KEY, Service, alive, until

# SymPy adds its terms for minutes.
POISON = "\\boxed{\\sum_{k=1}^{10^{7}} \\sqrt{k}}"


def math(number: int, completion: str, answer: str = "5", **params: Any) -> dict[str, Any]:
    return {
        "id": str(number),
        "verifier": "math",
        "completion": completion,
        "answer": answer,
        "params": params,
    }


def bad(completion: str, **more: Any) -> dict[str, Any]:
    return {"id": completion, "verifier": "bad", "completion": completion, **more}


async def score(client: httpx.AsyncClient, *items: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post("/v1/score", json={"items": items})
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


@pytest.fixture(scope="module")
def tough(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests whose kills it survives."""
    service = Service(tmp_path_factory.mktemp("tough"))
    yield service
    service.end()


@pytest.fixture
async def own(tough: Service) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service whose child processes the test may kill, and its client."""
    await tough.ready()
    await until(lambda: len(tough.workers) == 2, "its workers are there again")
    async with tough.client() as client:
        yield tough, client


def arrived(folder: Path) -> list[int]:
    """The workers that stand at the gate in `folder`."""
    return [int(path.name.removeprefix("arrived-")) for path in folder.glob("arrived-*")]


def gate(folder: Path, name: str = "gate", **params: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {
        "id": name,
        "verifier": "gate",
        "completion": "",
        "params": {"folder": str(folder), "timeout": 60, **params},
    }


async def test_a_comparison_that_never_ends_costs_itself_alone(client: httpx.AsyncClient) -> None:
    items = [math(number, "5") for number in range(20)]
    items[7] = math(7, POISON, timeout=0.3, on_timeout=-0.5)

    results = await score(client, *items)

    poisoned = results.pop(7)
    assert (poisoned["status"], poisoned["reward"]) == ("timeout", -0.5)
    assert "0.3 s, twice" in poisoned["detail"]
    assert {result["status"] for result in results} == {"correct"}


async def test_a_comparison_that_never_ends_may_be_masked(client: httpx.AsyncClient) -> None:
    (result,) = await score(client, math(0, POISON, timeout=0.3, on_timeout=None))

    assert (result["status"], result["reward"]) == ("error", None)
    assert "0.3 s, twice" in result["detail"]


async def test_a_catastrophic_pattern_costs_itself_alone(client: httpx.AsyncClient) -> None:
    # If the pattern alone takes too long, the answer is not to blame.
    pattern = {
        "id": "pattern",
        "verifier": "regex",
        "completion": "a" * 40 + "!",
        "params": {"pattern": "(a+)+$", "timeout": 0.3},
    }
    slow_to_compile = {
        **pattern,
        "id": "compile",
        "params": {"pattern": "(?i)" + "[\\x00-\\U0010ffff]" * 400, "timeout": 0.3},
    }

    results = await score(client, pattern, slow_to_compile, math(0, "5"))

    assert [result["status"] for result in results] == ["timeout", "error", "correct"]


async def test_other_items_are_answered_while_all_workers_are_at_long_ones(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    folder = tmp_path / "gate"
    waiting = asyncio.create_task(score(client, gate(folder, "a"), gate(folder, "b")))
    await until(lambda: len(arrived(folder)) == 2, "both workers are at the gate")

    for _ in range(10):
        results = await score(client, *[math(number, "5") for number in range(64)])
        assert {result["status"] for result in results} == {"correct"}

    assert not waiting.done()
    (folder / "open").touch()
    assert {result["status"] for result in await waiting} == {"correct"}


async def test_a_poisonous_reference_is_not_the_answers_fault(client: httpx.AsyncClient) -> None:
    (result,) = await score(client, math(0, "5", answer=POISON, timeout=0.3))

    assert (result["status"], result["reward"]) == ("error", None)
    assert "reference alone" in result["detail"]


async def test_a_process_that_blocks_every_signal_is_killed_with_its_children(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"

    (result,) = await score(client, bad("stubborn", answer=str(pids), params={"timeout": 1.0}))

    assert result["status"] == "timeout"
    worker, child = map(int, pids.read_text().split())
    await until(lambda: not alive(worker) and not alive(child), "worker and child are gone")


async def test_a_verifier_that_breaks_down_gives_no_reward(client: httpx.AsyncClient) -> None:
    ways = ("raise", "exit", "segfault", "nan", "null", "status", "parts")

    *broken, fine = await score(client, *map(bad, ways), bad("fine"))

    assert [result["status"] for result in broken] == ["error"] * 7
    assert [result["reward"] for result in broken] == [None] * 7
    details = {result["id"]: result["detail"] for result in broken}
    assert "RuntimeError: as asked" in details["raise"]
    assert "died twice: exit code 3" in details["exit"]
    assert "died twice: SIGSEGV" in details["segfault"]
    assert "not finite" in details["nan"]
    assert "no valid Verdict" in details["status"]
    assert "parts that do not end one after the other" in details["parts"]
    assert fine["status"] == "correct"


async def test_an_answer_that_needs_too_much_memory_is_wrong(client: httpx.AsyncClient) -> None:
    (result,) = await score(client, bad("memory"))

    assert (result["status"], result["reward"]) == ("wrong", 0.0)
    assert result["detail"] == "memory_limit"


async def test_killing_a_worker_from_outside_costs_nothing(
    own: tuple[Service, httpx.AsyncClient], tmp_path: Path
) -> None:
    service, client = own
    folder = tmp_path / "gate"
    waiting = asyncio.create_task(score(client, gate(folder)))
    (first,) = await until(lambda: arrived(folder), "the item is being judged")

    # The idle ones first: an item whose second worker is killed, too, is an error.
    for worker in sorted(service.workers, key=lambda worker: worker == first):
        os.kill(worker, signal.SIGKILL)
    await until(lambda: len(arrived(folder)) == 2 or waiting.done(), "a second try, or an error")
    (folder / "open").touch()

    (result,) = await waiting
    assert result["status"] == "correct"
    assert not alive(first)


async def test_a_worker_killed_before_it_reads_an_item_costs_it_no_try(
    own: tuple[Service, httpx.AsyncClient], tmp_path: Path
) -> None:
    service, client = own
    for worker in service.workers:
        os.kill(worker, signal.SIGKILL)
    await until(lambda: len(service.workers) == 2, "two fresh workers")
    folder = tmp_path / "gate"
    waiting = asyncio.create_task(score(client, gate(folder)))
    (first,) = await until(lambda: arrived(folder), "the item is being judged")
    (idle,) = [worker for worker in service.workers if worker != first]

    # The idle worker gets the item when the first one dies, and cannot read it.
    os.kill(idle, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    await until(lambda: len({*service.workers} - {idle, first}) == 1, "a third worker")
    await asyncio.sleep(0.1)
    os.kill(idle, signal.SIGKILL)
    await until(lambda: len(arrived(folder)) == 2 or waiting.done(), "a second try, or an error")
    (folder / "open").touch()

    (result,) = await waiting
    assert result["status"] == "correct"


async def test_killing_the_workers_parent_costs_nothing(
    own: tuple[Service, httpx.AsyncClient], tmp_path: Path
) -> None:
    service, client = own
    folder = tmp_path / "gate"
    waiting = asyncio.create_task(score(client, gate(folder)))
    (first,) = await until(lambda: arrived(folder), "the item is being judged")

    os.kill(service.fork_server, signal.SIGKILL)
    await until(lambda: not alive(first), "the worker dies with its parent")
    await until(lambda: len(arrived(folder)) == 2 or waiting.done(), "a second try, or an error")
    (folder / "open").touch()

    (result,) = await waiting
    assert result["status"] == "correct"


async def test_killing_the_service_leaves_no_process_behind(
    start: Callable[..., Service],
) -> None:
    service = await start().ready()
    family = [service.fork_server, *service.workers]
    assert len(family) == 3

    service.process.kill()
    service.process.wait()

    await until(lambda: not any(map(alive, family)), "fork server and workers are gone")


async def test_a_full_queue_says_when_to_come_back(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    service = await start("--max-queued-items", "3").ready()
    folder = tmp_path / "gate"
    async with service.client() as client:
        gates = [gate(folder, name) for name in ("a", "b", "c")]
        waiting = asyncio.create_task(score(client, *gates))
        await until(lambda: arrived(folder), "the items have been taken")

        full = await client.post("/v1/score", json={"items": [math(0, "5")]})
        too_many = await client.post(
            "/v1/score", json={"items": [math(number, "5") for number in range(4)]}
        )
        (folder / "open").touch()

        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        said = full.json()["detail"]
        assert said.startswith(
            "no room for 1 more: 3 items are waiting or being scored, of at most 3"
        )
        # The items would never fit: waiting is useless.
        assert too_many.status_code == 413
        assert {result["status"] for result in await waiting} == {"correct"}
        (after,) = await score(client, math(0, "5"))
        assert after["status"] == "correct"


async def test_items_of_a_client_that_left_are_not_scored(
    own: tuple[Service, httpx.AsyncClient], tmp_path: Path
) -> None:
    service, client = own
    folder = tmp_path / "gate"

    def metric(name: str) -> float:
        lines = httpx.get(f"{service.url}/metrics", headers=authorization(KEY)).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    judged = 'headrace_reward_items_total{status="correct",verifier="gate"}'
    before = metric(judged)
    async with service.client() as leaving:
        gates = [gate(folder, str(number), timeout=600) for number in range(30)]
        waiting = asyncio.create_task(score(leaving, *gates))
        await until(lambda: arrived(folder), "an item is being judged")
        waiting.cancel()

    await until(
        lambda: metric('headrace_reward_requests_total{code="499"}'), "the client is missed"
    )
    # A worker finishes the items that it has begun: at most these two, and the spare ones.
    begun = metric("headrace_reward_pending_items")
    assert 1 <= begun < 30
    (folder / "open").touch()
    await until(lambda: not metric("headrace_reward_pending_items"), "all is judged")
    assert metric(judged) == before + begun
    (after,) = await score(client, math(0, "5"))
    assert after["status"] == "correct"
