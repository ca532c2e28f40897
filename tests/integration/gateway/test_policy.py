"""The policy as an endpoint, at the gateway: places, clients that go away, workers that stop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from services.contracts.policy_calls import Failure, Piece, PolicyCall
from services.contracts.records import WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.launch.conditions import eventually

PLACES = 2


class Worker(threading.Thread):
    """Answers `quick` at once, `endless` for ever, and `broken` with a failure after a word."""

    def __init__(self, redis_url: str, run: str) -> None:
        super().__init__(daemon=True)
        self.redis_url, self.run_id = redis_url, run
        self.ended = threading.Event()
        self.given_up: list[str] = []

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        store = Store.from_url(self.redis_url)
        beat = asyncio.create_task(self._beat(store))
        answers = set()
        while not self.ended.is_set():
            taken = await store.policy_calls.take(self.run_id, "w", 0.2)
            if taken is not None:
                answers.add(asyncio.create_task(self._answer(store, *taken)))
        for task in (beat, *answers):
            task.cancel()
        await store.close()

    async def _beat(self, store: Store) -> None:
        record = WorkerRecord(id="w", pool="default", host="h", pid=1, state="generating")
        record.run, record.version, record.lineage = self.run_id, 3, "a"
        while True:
            await store.workers.heartbeat(record)
            await asyncio.sleep(0.3)

    async def _answer(self, store: Store, id: str, asked: PolicyCall) -> None:
        async def say(piece: Piece) -> bool:
            return await store.policy_calls.say(self.run_id, id, piece)

        await say(Piece(version=3))
        kind = str(asked.call.messages[0]["content"])
        if kind == "endless":
            wanted = True
            while wanted:
                wanted = await say(Piece(text="x"))
                await asyncio.sleep(0.05)
            self.given_up.append(id)
        elif kind == "broken":
            await say(Piece(text="half"))
            await asyncio.sleep(0.3)
            await say(Piece(failure=Failure(status=503, message="the worker stops")))
        else:
            await say(Piece(text="done", finish_reason="stop", prompt_tokens=2, sampled_tokens=1))


@pytest.fixture
def gateway(tmp_path: Path, redis_server: RedisServer) -> Iterator[GatewayProcess]:
    limits = {"HEADRACE_POLICY_CALLS": str(PLACES)}
    process = GatewayProcess(tmp_path / "gateway" / "data", redis_server.url, **limits)
    yield process
    process.stop()


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    options: Any = {"base_url": f"{gateway.url}/v1", "api_key": gateway.key, "timeout": 60}
    with openai.OpenAI(max_retries=0, **options) as client:
        yield client


def ask(client: openai.OpenAI, run: str, kind: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": kind}]
    return client.chat.completions.create(model=run, messages=messages, **options)


def test_open_calls_are_limited_and_a_client_that_goes_away_frees_its_place(
    client: openai.OpenAI, gateway: GatewayProcess, submit: Any, redis_server: RedisServer
) -> None:
    run = submit().json()["id"]
    with pytest.raises(openai.InternalServerError, match="no worker serves it yet") as early:
        ask(client, run, "quick")
    assert early.value.response.headers["Retry-After"] == "5"
    worker = Worker(redis_server.url, run)
    worker.start()
    try:
        eventually(lambda: [model.id for model in client.models.list()] == [run, f"{run}@3"])
        assert ask(client, run, "quick").choices[0].message.content == "done"
        anthropics = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key)
        assert [model.id for model in anthropics.models.list(limit=1)] == [run, f"{run}@3"]
        with pytest.raises(openai.APIError, match="the worker stops"):
            list(ask(client, run, "broken", stream=True))
        with pytest.raises(openai.InternalServerError, match="the worker stops"):
            ask(client, run, "broken")

        streams = [ask(client, run, "endless", stream=True) for _ in range(PLACES)]
        assert all(next(stream).model == f"{run}@3" for stream in streams)
        with pytest.raises(openai.RateLimitError, match="2 calls of the policy are open") as full:
            ask(client, run, "quick")
        assert full.value.response.headers["Retry-After"] == "1"
        for stream in streams:
            stream.close()
        eventually(lambda: len(worker.given_up) == PLACES)
        patient = client.with_options(max_retries=5)
        assert ask(patient, run, "quick").choices[0].finish_reason == "stop"

        # One that waits for the whole answer goes away as well.
        def gives_up() -> bool:
            late = (openai.APITimeoutError, openai.RateLimitError, openai.InternalServerError)
            with pytest.raises(late):
                ask(client.with_options(timeout=1), run, "endless")
            return len(worker.given_up) > PLACES

        eventually(gives_up)
    finally:
        worker.ended.set()
        worker.join()
