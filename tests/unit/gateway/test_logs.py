"""Logs from the process that writes a line to the page that the gateway answers."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from reward.recent_logs import RecentLogs
from services.contracts.logs import LogLine, WrittenLine
from services.gateway.app import create_app
from services.gateway.log_pages import LogSource, lines_after, newest_lines, wanted_by
from services.gateway.reward_logs import take_once
from services.gateway.settings import GatewaySettings
from services.log_shipping import ShippedLogs
from services.runtime.log_lines import LogLines
from services.store import Store
from services.store.keys import LOGS, pool_key, run_key
from services.store.work import process_logs
from tests.integration.store.servers import DURABLE, Server

KEY = {"Authorization": "Bearer hr-key"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"), 0, *DURABLE)
    server.wait()
    yield server
    server.kill()


def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    client = Redis.from_url(url(server))
    await client.flushall()
    for run in ("r1", "r2"):
        await client.hset(run_key(run, "run"), "id", run)
    yield client
    await client.aclose()


@pytest.fixture
async def store(server: Server, redis: Redis) -> AsyncIterator[Store]:
    store = Store.from_url(url(server))
    yield store
    await store.close()


def line(text: str, process: str = "learner/0", run: str | None = None, **more: Any) -> WrittenLine:
    fields = {"time": 1.0, "host": "node7", "level": "info"} | more
    return WrittenLine(text=text, process=process, run=run, **fields)


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


EVERY = wanted_by(None, "debug")


async def test_a_line_that_names_no_run_belongs_to_the_active_run_of_its_pool(
    store: Store, redis: Redis
) -> None:
    await redis.set(pool_key("p", "active"), "r1")
    await store.process_logs.add([line("ranks have ended"), line("step", run="r2")], "p")
    await store.process_logs.add([line("gateway listens", "gateway/node7")])

    assert texts(await store.process_logs.after("r1", "0", 10)) == ["ranks have ended"]
    assert texts(await store.process_logs.after("r2", "0", 10)) == ["step"]
    assert texts(await store.process_logs.after(None, "0", 10)) == ["gateway listens"]
    assert 0 < await redis.ttl(run_key("r1", "log")) <= process_logs.KEPT_SECONDS
    assert await redis.ttl(LOGS) == -1


async def test_a_line_about_a_deleted_run_is_kept_with_the_installation(
    store: Store, redis: Redis
) -> None:
    await redis.delete(run_key("r1", "run"))
    await store.process_logs.add([line("run deleted", run="r1"), line("gateway listens")])

    assert not await redis.exists(run_key("r1", "log"))
    kept = await store.process_logs.after(None, "0", 10)
    assert {one.text: one.run for one in kept} == {"run deleted": "r1", "gateway listens": None}


async def test_a_log_is_bounded(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_logs, "KEPT_OF_RUN", 200)
    await store.process_logs.add([line(str(number), run="r1") for number in range(1000)])

    assert 200 <= await redis.xlen(run_key("r1", "log")) < 400
    assert texts(await store.process_logs.before("r1", "+", 1)) == ["999"]


async def test_lines_of_many_runs_take_two_round_trips(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    execute = Pipeline.execute

    async def counted(pipe: Any, *arguments: Any) -> Any:
        sent.append(len(pipe.command_stack))
        return await execute(pipe, *arguments)

    monkeypatch.setattr(Pipeline, "execute", counted)
    await store.process_logs.add([line("x", run=run) for run in ("r1", "r2", "gone")])

    assert sent == [3, 5]
    assert len(await store.process_logs.after(None, "0", 10)) == 1


async def test_a_damaged_line_hides_no_other_one(store: Store, redis: Redis) -> None:
    await redis.xadd(run_key("r1", "log"), {"l": b"{"})
    await store.process_logs.add([line("next", run="r1")])
    damaged, after = await store.process_logs.after("r1", "0", 10)

    assert damaged.text.startswith("this line in Redis is unreadable")
    assert after.text == "next"


async def test_pages_of_several_streams_have_each_line_once(
    store: Store,
) -> None:
    for number in range(30):
        shared = number % 3 == 0
        process = "reward/node7" if shared else f"learner/{number % 2}"
        run = None if shared else "r1"
        level = "warning" if shared else "info"
        await store.process_logs.add([line(str(number), process, run, level=level)])
    for process, level in (("learner", "error"), ("gateway/node7", "info")):
        await store.process_logs.add([line("of other things", process, level=level)])
    sources = [LogSource("r1"), LogSource(None, shared_only=True)]

    pages, places = [], ["0-0", "0-0"]
    while True:
        page, places, has_more = await lines_after(store, sources, EVERY, places, 7)
        assert len(page) <= 7
        pages += texts(page)
        if not has_more:
            break
    # Lines of two streams may arrive in the same millisecond.
    assert sorted(pages, key=int) == [str(number) for number in range(30)]
    for of_run in (True, False):
        numbers = [int(text) for text in pages if bool(int(text) % 3) == of_run]
        assert numbers == sorted(numbers)
    newest = await newest_lines(store, sources, EVERY, 30)
    assert sorted(texts(newest.lines), key=int)[0] == "0"
    assert len((await newest_lines(store, sources, EVERY, 4)).lines) == 4
    of_reward = wanted_by("reward", "debug")
    assert texts((await newest_lines(store, sources, of_reward, 2)).lines) == ["24", "27"]
    # Of the shared stream, two lines are behind the newest one that belongs to the run.
    assert newest.places == (await newest_lines(store, sources, EVERY, 0)).places == places


async def test_a_follower_of_two_streams_gets_a_line_that_arrives_with_a_smaller_id(
    store: Store, redis: Redis
) -> None:
    sources = [LogSource("r1"), LogSource(None)]
    await store.process_logs.add([line("first", run="r1"), line("of all")])
    entries: Any = await redis.xrange(LOGS)
    fields = entries[0][1]
    await redis.xadd(run_key("r1", "log"), fields, id="99999999999990-7")
    page, places, _ = await lines_after(store, sources, EVERY, ["0-0", "0-0"], 10)
    assert (await newest_lines(store, sources, EVERY, 0)).places == places

    # In the same millisecond, and one before it by the clock of another shard.
    for id in ("99999999999989-0", "99999999999990-2"):
        await redis.xadd(LOGS, fields, id=id)
    later, places, _ = await lines_after(store, sources, EVERY, places, 10)

    assert (len(page), [line.id for line in later]) == (
        3,
        ["99999999999989-0", "99999999999990-2"],
    )
    assert (await lines_after(store, sources, EVERY, places, 10)).lines == []


def test_a_filter_takes_a_process_or_all_of_a_kind_and_levels_from_one_on() -> None:
    a_line = LogLine.model_validate(
        line("x", "vllm/node7-1", level="warning").model_dump() | {"id": "1-0"}
    )

    for process, level, fits in [
        ("vllm", "info", True),
        ("vllm/node7-1", "warning", True),
        ("vllm/node7", "debug", False),
        (None, "error", False),
    ]:
        assert wanted_by(process, level)(a_line) is fits  # type: ignore[arg-type]


async def test_the_api_pages_follows_and_filters(
    server: Server, store: Store, tmp_path: Path
) -> None:
    settings = GatewaySettings(redis_url=SecretStr(url(server)), data=tmp_path)
    app = create_app(settings, "hr-key")
    transport = httpx.ASGITransport(app)
    await store.process_logs.add([line("a", "gateway/n"), line("b", "reward/n", level="error")])
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=KEY) as api,
    ):
        page = (await api.get("/v1/logs", params={"limit": 1})).json()
        assert texts_of(page) == ["a"]
        page = (await api.get("/v1/logs", params={"cursor": page["next"]})).json()
        assert (texts_of(page), page["next"]) == (["b"], None)
        quiet = (await api.get("/v1/logs", params={"newest": 0})).json()
        assert texts_of(quiet) == []
        await store.process_logs.add([line("c", "gateway/n", level="warning")])
        assert texts_of((await api.get("/v1/logs", params={"cursor": quiet["later"]})).json()) == [
            "c"
        ]
        errors = await api.get("/v1/logs", params={"level": "warning", "process": "reward"})
        assert texts_of(errors.json()) == ["b"]
        refused = await api.get("/v1/logs", params={"cursor": "WyJhIl0"})
        assert refused.status_code == 422
        assert "is no cursor of this list" in refused.json()["detail"]
        assert (await api.get("/v1/runs/none/logs")).status_code == 404


def texts_of(page: dict[str, Any]) -> list[str]:
    return [entry["text"] for entry in page["logs"]]


def test_a_process_ships_its_lines_and_the_error_that_ends_it(server: Server) -> None:
    settings = GatewaySettings(redis_url=SecretStr(url(server)))
    with server.client() as client:
        client.flushall()

        def work() -> None:
            with ShippedLogs(settings, "rollout/w1", "p"):
                logging.getLogger("rollout").error("redis://user:pw@host is away")
                raise RuntimeError("boom")

        with pytest.raises(RuntimeError, match="boom"):
            work()
        (_, first), (_, last) = client.xrange(LOGS)

    assert b"redis://***@host is away" in first[b"l"]
    assert b"the process ends with an error" in last[b"l"]
    assert b"RuntimeError: boom" in last[b"l"]
    assert not [thread for thread in threading.enumerate() if thread.name == "logs"]


def test_without_redis_a_process_ends_in_time_and_logs_to_stderr_alone(tmp_path: Path) -> None:
    settings = GatewaySettings(redis_url=SecretStr(f"unix://{tmp_path}/none"))
    with ShippedLogs(settings, "gateway/n"):
        logging.getLogger("gateway").error("Redis is away")

    assert logging.getLogger().handlers == [
        handler for handler in logging.getLogger().handlers if not isinstance(handler, LogLines)
    ]


def test_lines_that_cannot_be_written_do_not_end_the_sending_of_later_ones(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = GatewaySettings(redis_url=SecretStr(url(server)))
    add, tried = process_logs.ProcessLogs.add, threading.Event()

    async def broken_once(logs: Any, lines: Any, pool: str | None = None) -> None:
        if not tried.is_set():
            tried.set()
            raise ValueError("no such character")
        await add(logs, lines, pool)

    monkeypatch.setattr(process_logs.ProcessLogs, "add", broken_once)
    with server.client() as client:
        client.flushall()
        with ShippedLogs(settings, "gateway/n"):
            logging.getLogger("gateway").error("first")
            assert tried.wait(20)
            logging.getLogger("gateway").error("second")
        (kept,) = client.xrange(LOGS)

    assert b"second" in kept[1][b"l"]
    assert "lines that the log lacks: 1 (ValueError('no such character'))" in (
        capsys.readouterr().err
    )


async def test_a_gateway_takes_each_line_of_the_reward_service_once(
    store: Store, tmp_path: Path
) -> None:
    lines = LogLines("reward/n")
    services = [RecentLogs(lines)]

    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        recent = services[-1].after(asked["start"], int(asked["number"]))
        return httpx.Response(200, text=recent.model_dump_json())

    settings = GatewaySettings(data=tmp_path, reward_key=SecretStr("k" * 20))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        lines.add("one", logging.INFO)
        await take_once(store, settings, http, "first gateway")
        await take_once(store, settings, http, "second gateway")
        lines.add("two", logging.INFO)
        await take_once(store, settings, http, "first gateway")
        # The service starts again.
        services.append(RecentLogs(lines))
        lines.add("three", logging.INFO)
        await take_once(store, settings, http, "first gateway")

    assert texts(await store.process_logs.after(None, "0", 10)) == ["one", "two", "three"]
