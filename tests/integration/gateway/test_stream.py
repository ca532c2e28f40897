"""The index of runs, and the stream that one loop a gateway serves to all clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.gateway import live_stream
from services.gateway.live_stream import LiveStream
from services.gateway.routes.runs.runs import RunFilter
from services.gateway.run_details import RunDetails
from services.gateway.run_file_retention import Sizes
from services.gateway.run_index import RunIndex
from services.store import Store
from services.store.keys import CHANGES, RUNS
from tests.integration.gateway.servers import RedisServer

Sent = tuple[str, str, Any]
"""A message: its kind, its id, its data."""


def a_run(id: str, created: float = 1.0, **fields: Any) -> RunRecord:
    record: dict[str, Any] = {
        "name": f"n-{id}",
        "pool": "p",
        "kind": "sft",
        "state": RunState.QUEUED,
        "config": {"model": {"path": "m/tiny"}, "data": {"dataset": "sums"}},
    }
    return RunRecord(id=id, created=created, **record | fields)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of these tests alone: they empty it, and stop it."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


class Gateway:
    """The parts of one gateway process."""

    def __init__(self, url: str, data: Path) -> None:
        self.store = Store.from_url(url)
        self.index = RunIndex(self.store)
        details = RunDetails(self.store, Sizes(data))
        self.stream = LiveStream(self.store, self.index, details.of)

    async def names(self) -> list[str]:
        return [run.name for run in await self.index.all()]

    async def close(self) -> None:
        await self.stream.close()
        await self.store.close()


@pytest.fixture
async def gateways(
    redis: Redis, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[Sequence[Gateway]]:
    parts = [Gateway(redis_server.url, tmp_path) for _ in range(2)]
    yield parts
    for part in parts:
        await part.close()


class Client:
    """A client of the stream, as a browser keeps it."""

    def __init__(self, gateway: Gateway, *runs: str, last: str | None = None) -> None:
        self.last = last
        self._gateway, self._runs = gateway, runs

    async def __aenter__(self) -> "Client":
        listener = await self._gateway.stream.listen(self._runs, self.last)
        self._chunks = self._gateway.stream.messages(listener)
        self._waiting: list[Sent] = []
        assert await self.next() == ("", "open", None)
        return self

    async def __aexit__(self, *_: object) -> None:
        async with aclosing(self._chunks):  # type: ignore[type-var]
            pass

    async def next(self) -> Sent:
        while not self._waiting:
            async with asyncio.timeout(10):
                chunk = await anext(self._chunks)
            for text in chunk.decode().removesuffix("\n\n").split("\n\n"):
                lines = dict(line.split(": ", 1) for line in text.split("\n"))
                self.last = lines.get("id", self.last)
                data = json.loads(lines["data"]) if "data" in lines else None
                self._waiting.append((lines.get("event", ""), lines.get("", ""), data))
        return self._waiting.pop(0)

    async def next_of(self, kind: str) -> Any:
        while True:
            found, _, data = await self.next()
            if found == kind:
                return data


async def test_two_gateways_list_what_either_has_changed_at_once(
    gateways: Sequence[Gateway],
) -> None:
    first, second = gateways
    assert await second.names() == []
    for id, created in (("a", 1.0), ("c", 3.0), ("b", 2.0)):
        await first.store.runs.submit(a_run(id, created))
    assert await second.names() == await first.names() == ["n-c", "n-b", "n-a"]

    await first.store.runs.cancel("b")
    await second.index.catch_up()
    run = second.index.get("b")
    assert run is not None
    assert run.state is RunState.CANCELLED
    assert second.index.live == {"a", "c"}
    assert (run.model, run.datasets) == ("m/tiny", ["sums"])

    await second.store.runs.delete("b")
    assert await first.names() == ["n-c", "n-a"]


async def test_pages_list_every_run_once_while_runs_come_and_go(
    gateways: Sequence[Gateway],
) -> None:
    gateway, other = gateways
    # Three of one moment, between an older and a newer one.
    for id, created in (("old", 1.0), ("a", 2.0), ("b", 2.0), ("c", 2.0), ("new", 3.0)):
        await other.store.runs.submit(a_run(id, created))
    first, after = await gateway.index.page(2, None)
    await other.store.runs.submit(a_run("newest", 4.0))
    await other.store.runs.cancel("c")
    await other.store.runs.delete("c")
    second, then = await gateway.index.page(2, after)
    third, end = await gateway.index.page(2, then)
    assert [[run.id for run in page] for page in (first, second, third)] == [
        ["new", "c"],
        ["b", "a"],
        ["old"],
    ]
    assert end is None
    some, end = await gateway.index.page(2, None, [lambda run: run.summary.created == 2.0])
    assert ([run.id for run in some], end) == (["b", "a"], None)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"q": "GSM8K"}, "ba"),
        ({"q": "lr Baseline"}, "b"),
        ({"q": "lr nothing"}, ""),
        ({"q": "grpo"}, "cb"),
        ({"q": "qwen3"}, "a"),
        ({"state": ["cancelled"]}, "c"),
        ({"tag": ["lr"]}, "cb"),
        ({"tag": ["lr", "short"]}, "c"),
        ({"recipe": "grpo", "state": ["queued"]}, "b"),
        ({"model": "Qwen3-0.6B"}, "a"),
        ({"model": "Qwen/Qwen3-0.6B"}, "a"),
        ({"dataset": "gsm8k", "name": "n-a"}, "a"),
        ({"pool": "other"}, ""),
    ],
)
async def test_a_list_has_the_runs_that_every_parameter_names(
    gateways: Sequence[Gateway], asked: dict[str, Any], found: str
) -> None:
    gateway, _ = gateways
    datasets = {"data.dataset": "gsm8k"}
    qwen = {"model": {"path": "Qwen/Qwen3-0.6B"}, "data": {"dataset": "x"}}
    runs = [
        a_run("a", 1.0, dataset_names=datasets, config=qwen),
        a_run("b", 2.0, dataset_names=datasets, recipe="grpo", tags=["lr"], notes="a baseline"),
        a_run("c", 3.0, recipe="grpo", tags=["lr", "short"]),
    ]
    for run in runs:
        await gateway.store.runs.submit(run)
    await gateway.store.runs.cancel("c")
    page, _ = await gateway.index.page(9, None, RunFilter.model_validate(asked).tests())
    assert "".join(run.id for run in page) == found


async def test_an_index_reads_all_runs_again_after_redis_has_lost_its_newest_change(
    gateways: Sequence[Gateway], redis: Redis
) -> None:
    gateway, other = gateways
    for id in ("a", "b"):
        await gateway.store.runs.submit(a_run(id))
    assert await gateway.names() == ["n-b", "n-a"]
    # As a failover to a replica that lacks the newest writes.
    newest = await gateway.store.run_changes.newest()
    await redis.xdel(CHANGES, newest)
    await redis.zrem(RUNS, "b")
    assert await gateway.names() == ["n-a"]
    await other.store.runs.submit(a_run("c", 9.0))
    assert await gateway.names() == ["n-c", "n-a"]
    # A key of another type costs a reading of all runs, until the next change replaces it.
    await redis.set(CHANGES, "nonsense")
    await redis.zrem(RUNS, "a")
    assert await gateway.names() == ["n-c"]
    await other.store.runs.submit(a_run("d", 10.0))
    assert await gateway.names() == ["n-d", "n-c"]
    assert await redis.type(CHANGES) == b"stream"


async def test_a_change_that_nobody_announced_is_found(
    gateways: Sequence[Gateway], redis: Redis
) -> None:
    gateway, _ = gateways
    for id in ("a", "b"):
        await gateway.store.runs.submit(a_run(id))
    assert await gateway.names() == ["n-b", "n-a"]
    await redis.hset("headrace:{a}:run", "state", "failed")
    await redis.zrem(RUNS, "b")
    slept = 0

    async def sleep(_: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await gateway.index.keep_rereading(sleep)
    assert await gateway.names() == ["n-a"]
    assert gateway.index.live == set()


async def test_a_stream_tells_of_changed_runs_and_workers_and_of_events_of_named_runs(
    gateways: Sequence[Gateway],
) -> None:
    gateway, other = gateways
    await other.store.runs.submit(a_run("a", max_steps=9))
    await other.store.runs.submit(a_run("b"))
    async with Client(gateway, "a") as client, Client(gateway) as unnamed:
        await other.store.events.add("a", "warning", {"message": "one\u2028line"})
        await other.store.events.add("b", "warning", {"message": "of another run"})
        event = await client.next_of("event")
        assert (event["run"], event["kind"]) == ("a", "warning")
        assert event["data"] == {"message": "one\u2028line"}

        token = await other.store.runs.acquire("a", "l")
        await other.store.runs.set_state("a", RunState.RUNNING, "")
        fields = {"step": 3, "loss": 0.5, "step_seconds": 2.0}
        await other.store.runs.update("a", token, fields)
        (run,) = (await client.next_of("runs"))["runs"]
        assert (run["phase"], run["eta_seconds"]) == ("trains step 4 of 9", 12.0)
        assert (run["loss"], run["model"], run["state"]) == (0.5, "m/tiny", "running")

        await other.store.runs.set_state("b", RunState.CANCELLED, "")
        await other.store.runs.delete("b")
        assert (await client.next_of("runs"))["deleted"] == ["b"]
        worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle")
        await other.store.workers.heartbeat(worker)
        assert [w["id"] for w in (await client.next_of("workers"))["workers"]] == ["w"]

        kinds = [(await unnamed.next())[0] for _ in range(3)]
        assert kinds == ["runs", "runs", "workers"]


async def test_a_client_goes_on_at_another_gateway_without_a_loss(
    gateways: Sequence[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "PIECE", 2)
    first, second = gateways
    for id in ("a", "b", "c"):
        await first.store.runs.submit(a_run(id))
    async with Client(first, "a") as client:
        await first.store.events.add("a", "warning", {"n": 0})
        assert (await client.next_of("event"))["data"] == {"n": 0}
    for n in range(1, 6):
        await first.store.events.add("a", "warning", {"n": n})
    await first.store.runs.cancel("b")
    await first.store.runs.cancel("c")
    await first.store.runs.delete("c")
    async with Client(second, "a", last=client.last) as client:
        changed = await client.next_of("runs")
        assert [run["id"] for run in changed["runs"]] == ["b"]
        assert changed["deleted"] == ["c"]
        assert [(await client.next_of("event"))["data"]["n"] for _ in range(5)] == [1, 2, 3, 4, 5]
        await first.store.events.add("a", "warning", {"n": 6})
        assert (await client.next_of("event"))["data"] == {"n": 6}
        # A client that was cut before its first message has lost nothing either.
    async with Client(first, "a", last=client.last) as client:
        pass
    await first.store.events.add("a", "warning", {"n": 7})
    async with Client(second, "a", last=client.last) as client:
        assert (await client.next_of("event"))["data"] == {"n": 7}


@pytest.mark.parametrize("last", ["nonsense", "1-1", "0-0,a:12-0", f"0-0,a:{'9' * 20}-0"])
async def test_a_place_that_is_gone_is_answered_with_a_reset(
    gateways: Sequence[Gateway], last: str
) -> None:
    gateway, _ = gateways
    await gateway.store.runs.submit(a_run("a"))
    async with Client(gateway, "a", last=last) as client:
        assert (await client.next())[0] == "reset"
        await gateway.store.runs.cancel("a")
        assert (await client.next_of("runs"))["runs"][0]["state"] == "cancelled"


async def test_clients_are_reset_after_redis_has_lost_a_change(
    gateways: Sequence[Gateway], redis: Redis
) -> None:
    gateway, _ = gateways
    await gateway.store.runs.submit(a_run("a"))
    async with Client(gateway) as client:
        await redis.xdel(CHANGES, await gateway.store.run_changes.newest())
        # The list of another client finds the loss first.
        assert await gateway.names() == ["n-a"]
        assert (await client.next())[0] == "reset"


@pytest.mark.parametrize(("kept", "kept_bytes"), [(3, 1 << 20), (100, 300)])
async def test_a_slow_client_is_reset_and_delays_nobody(
    gateways: Sequence[Gateway], monkeypatch: pytest.MonkeyPatch, kept: int, kept_bytes: int
) -> None:
    monkeypatch.setattr(live_stream, "KEPT", kept)
    monkeypatch.setattr(live_stream, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(live_stream, "TICK", 0.01)
    gateway, _ = gateways
    await gateway.store.runs.submit(a_run("a"))
    async with Client(gateway, "a") as slow, Client(gateway, "a") as quick:
        for n in range(5):
            await gateway.store.events.add("a", "warning", {"n": n})
            assert (await quick.next_of("event"))["data"] == {"n": n}
        assert (await slow.next())[0] == "reset"
        await gateway.store.events.add("a", "warning", {"n": 5})
        assert (await slow.next_of("event"))["data"] == {"n": 5}


async def test_a_stream_goes_on_after_a_failure_that_nobody_foresaw(
    gateways: Sequence[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "TICK", 0.01)
    gateway, _ = gateways
    await gateway.store.runs.submit(a_run("a"))
    async with Client(gateway) as client:
        described = gateway.stream._described

        async def failing(_: object) -> Any:
            monkeypatch.setattr(gateway.stream, "_described", described)
            raise ZeroDivisionError

        monkeypatch.setattr(gateway.stream, "_described", failing)
        await gateway.store.runs.submit(a_run("b"))
        await client.next_of("reset")
        await gateway.store.runs.cancel("b")
        assert (await client.next_of("runs"))["runs"][0]["state"] == "cancelled"


async def test_a_stream_goes_on_after_redis_was_away(
    gateways: Sequence[Gateway], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "TICK", 0.01)
    gateway, other = gateways
    await gateway.store.runs.submit(a_run("a"))
    async with Client(gateway, "a") as client:
        begin_again = gateway.stream._begin_again

        async def with_redis() -> None:
            if redis_server.is_stopped:
                redis_server.start()
            await begin_again()

        monkeypatch.setattr(gateway.stream, "_begin_again", with_redis)
        redis_server.stop()
        async with asyncio.timeout(60):
            while (await client.next())[0] != "reset":
                pass
        await other.store.runs.cancel("a")
        assert (await client.next_of("runs"))["runs"][0]["state"] == "cancelled"
