"""Every example of the API's description is accepted by the gateway that shows it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from services.contracts.policy_calls import Piece, PolicyCall
from services.contracts.records import WorkerRecord
from services.contracts.sessions import SampledTurn
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload
from tests.integration.gateway.test_continuing import write_checkpoint
from tests.integration.gateway.test_policy import Worker
from tests.integration.launch.conditions import eventually
from tests.integration.reward.conftest import KEY, Service
from tests.integration.store.test_agent_sessions import turn

CHAT = b'{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}\n'
AGENTS = {"rollout": {"episode": "sessions"}, "evaluation": None, "data": {"dataset": "mine"}}
LIVE: dict[str, Any] = {
    "data": {"source": "sessions"},
    "rewards": [],
    "rollout": {"episode": "sessions", "max_staleness": 8},
    "algorithm": {"samples_per_prompt": 1, "advantage": {"type": "running_mean"}},
    "training": {"max_steps": 3},
}
POLICY = (
    *("chat_completions_create", "completions_create", "responses_create"),
    *("messages_create", "messages_count"),
)
COUNTED = Piece(version=3, text="4", finish_reason="stop", prompt_tokens=2, sampled_tokens=1)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of its own: the examples of chats name a run, and other tests have runs of its
    name."""
    (folder := tmp_path / "redis").mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def gateway(tmp_path: Path, redis_server: RedisServer) -> Iterator[GatewayProcess]:
    data = tmp_path / "gateway" / "data"
    data.mkdir(parents=True)
    reward = asyncio.run(Service(tmp_path, f"--data={data}", "--verifier-uploads=true").ready())
    where = {"HEADRACE_REWARD_URL": reward.url, "HEADRACE_REWARD_KEY": KEY}
    process = GatewayProcess(data, redis_server.url, **where)
    yield process
    process.stop()
    reward.end()


class Sampler(Worker):
    """A worker that answers any call of the policy."""

    async def _answer(self, store: Store, id: str, asked: PolicyCall) -> None:
        await store.policy_calls.say(self.run_id, id, COUNTED)


class Player(threading.Thread):
    """A worker that samples `hi` for each turn of the sessions of a run, and counts prompts."""

    def __init__(self, redis_url: str, run: str) -> None:
        super().__init__(daemon=True)
        self.redis_url, self.run_id = redis_url, run
        self.ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._play())

    async def _play(self) -> None:
        store = Store.from_url(self.redis_url)
        token = await store.runs.acquire(self.run_id, "aaa")
        await store.runs.set_state(self.run_id, "running", "", fencing_token=token)
        name = f"of-{self.run_id}"
        worker = WorkerRecord(id=name, pool="default", host="h", pid=1, state="generating")
        worker.run, worker.version, worker.lineage = self.run_id, 0, "aaa"
        while not self.ended.is_set():
            await store.workers.heartbeat(worker)
            for claimed in await store.agent_calls.claim(self.run_id, name, 10):
                # A chat has a message, a completion a text.
                message = {"role": "assistant", "content": "hi", "text": "hi"}
                said = msgspec.structs.replace(turn("hi"), message=message)
                sampled = SampledTurn(said, "after", None, ("aaa", 0))
                await store.agent_calls.record_turn(self.run_id, name, claimed, sampled)
            if asked := await store.policy_calls.take(self.run_id, name, 0.1):
                await store.policy_calls.say(self.run_id, asked[0], COUNTED)
        await store.close()


def submitted(api: httpx.Client, model: Path, config: dict[str, Any], **named: Any) -> str:
    whole = {"model": {"path": str(model)}, **config}
    made = api.post("/v1/runs", json={"config": whole, **named})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def trained(redis_url: str, data: Path, run: str) -> None:
    """Give a run a checkpoint, as its learner would."""
    name = f"runs/{run}/checkpoints/step-000001-9f3a1c"
    write_checkpoint(data / name)

    async def train() -> None:
        store = Store.from_url(redis_url)
        token = await store.runs.acquire(run, "9f3a1c")
        await store.runs.update(run, token, {"checkpoint": name, "committed_step": 1, "step": 1})
        await store.close()

    asyncio.run(train())


def examples_of(document: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return path and example of each operation that takes a document, by its id."""
    examples = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
                example = document["components"]["schemas"][name].get("example")
                examples[operation["operationId"]] = (f"{method.upper()} {path}", example)
    return examples


def test_every_example_is_accepted(
    gateway: GatewayProcess, api: httpx.Client, model: Path, redis_server: RedisServer
) -> None:
    examples = examples_of(api.get("/openapi.json").json())
    upload(api, "mine", b'{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "3"}\n')
    upload(api, "examples", CHAT * 40)

    answers: dict[str, httpx.Response] = {}

    def send(id: str, **names: str) -> None:
        operation, example = examples[id]
        method, _, path = operation.partition(" ")
        assert example is not None, f"{id} has no example"
        answers[id] = api.request(method, path.format_map(names), json=example)

    send("fine_tuning_uploads_create")
    parted = answers["fine_tuning_uploads_create"].json()["id"]
    row = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
    data = {"data": json.dumps(row).ljust(120).encode()}
    part = api.post(f"/openai/v1/uploads/{parted}/parts", files=data).json()["id"]
    operation, _ = examples["fine_tuning_uploads_complete"]
    examples["fine_tuning_uploads_complete"] = (operation, {"part_ids": [part]})
    operation, example = examples["fine_tuning_jobs_create"]
    file = parted.replace("upload_", "file-")
    named = {"model": str(model), "training_file": file}
    examples["fine_tuning_jobs_create"] = (operation, example | named)
    send("chains_create")
    chain = answers["chains_create"].json()["id"]
    api.post(f"/v1/chains/{chain}/cancel")
    send("chains_resume", chain=chain)
    asked = submitted(api, model, {"data": {"dataset": "mine"}}, recipe="grpo", name="grpo")
    send("runs_update", run=asked)
    played = submitted(api, model, AGENTS, recipe="grpo", name="agents")
    live = submitted(api, model, LIVE, name="live")
    players = [Player(redis_server.url, run) for run in (played, live)]
    policy = Sampler(redis_server.url, asked)
    workers: list[Player | Worker] = [*players, policy]
    for worker in workers:
        worker.start()
    lease = f"/v1/runs/{played}/groups/lease"
    eventually(lambda: api.post(lease).status_code == 201)
    talk = ""
    for id in sorted(id for id, (path, _) in examples.items() if "/{session}/" in path)[::-1]:
        leased = api.post(lease).json()["sessions"][0]["id"]
        if id == "session_conversations_add":
            talk = api.post(f"/v1/sessions/{leased}/v1/conversations", json={}).json()["id"]
        send(id, session=leased, conversation=talk)
    eventually(lambda: len(api.get("/v1/models").json()["data"]) > 0)
    # Before another run is called `grpo`.
    for id in POLICY:
        send(id)
    base = submitted(api, model, {"data": {"dataset": "mine"}}, recipe="grpo", name="base")
    trained(redis_server.url, gateway.data, base)
    # The reward service starts its workers again with a new verifier: score first.
    last = "verifiers_create"
    for id in [*sorted(examples.keys() - answers.keys() - {last}, reverse=True), last]:
        run = {"sessions_create": live, "runs_fork": base}.get(id, played)
        send(id, run=run, verifier="math", upload=parted)
    for worker in workers:
        worker.ended.set()
        worker.join()

    refused = {id: answer.text for id, answer in answers.items() if not answer.is_success}
    assert not refused, refused
    assert answers.keys() == examples.keys()
