"""The API's description is true: every example is accepted, and requests that are generated from it
get no 5xx, no status and no answer that it does not describe."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

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
from tests.ports import own_ports

CHAT = b'{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}\n'
SUMS = b'{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "3"}\n'
FINE_TUNING_ROW = {
    "messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
}
DESCRIBED = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_schema_conformance, response_headers_conformance),
]
CASES = 8
"""Generated requests for each operation."""
BOOLEANS = strategies.booleans()
FOLLOWED = {"GET /v1/stream", "GET /v1/runs/{run}/events"}
"""Operations whose answer never ends."""
ENDING = ("/cancel", "/pause", "/end", "/release")
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
    *("fine_tuned_chat_completions_create", "fine_tuned_completions_create"),
    "fine_tuned_responses_create",
)
COUNTED = Piece(version=3, text="4", finish_reason="stop", prompt_tokens=2, sampled_tokens=1)


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


class World:
    """An installation in which each example finds what it names: runs with workers, a session, a
    chain, an upload, files."""

    def __init__(self, gateway: GatewayProcess, api: httpx.Client, redis_url: str) -> None:
        self.gateway, self.api, self._redis_url = gateway, api, redis_url
        self.document: dict[str, Any] = api.get("/openapi.json").json()
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.answers: dict[str, httpx.Response] = {}
        """By operation id: of the examples."""
        self.failed: dict[str, str] = {}
        """Examples whose answer is not as the document describes it."""
        self.names: dict[str, str] = {"verifier": "math", "dataset": "mine", "id": "0" * 8}
        """Values of parameters of paths."""
        self.statuses: Counter[int] = Counter()
        self._workers: list[Player | Worker] = []
        self.examples = {
            operation["operationId"]: (f"{method.upper()} {path}", self.example_of(operation))
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        }

    def example_of(self, operation: dict[str, Any]) -> Any:
        """Return the example of an operation that takes a document; None without one."""
        content = operation.get("requestBody", {}).get("content", {})
        reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        return (
            self.document["components"]["schemas"]
            .get(reference.rpartition("/")[2], {})
            .get("example")
        )

    def send(self, id: str, **names: str) -> Any:
        """Send the example of an operation. Return its answer."""
        method, _, path = self.examples[id][0].partition(" ")
        example = self.examples[id][1]
        assert example is not None, f"{id} has no example"
        named = self.names | names
        answer = self.answers[id] = self.api.request(method, path.format_map(named), json=example)
        case = self.schema[path][method].Case(body=example, path_parameters=named)
        try:
            case.validate_response(answer, checks=DESCRIBED)
        except FailureGroup as group:
            self.failed[id] = str(group)
        return answer.json() if answer.content else None

    def submit(self, config: dict[str, Any], **named: Any) -> str:
        model = self.gateway.data.parent / "model"
        whole = {"model": {"path": str(model)}, **config}
        made = self.api.post("/v1/runs", json={"config": whole, **named})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def send_all(self) -> None:
        """Send each example, once what it names is there."""
        api, names = self.api, self.names
        upload(api, "mine", SUMS)
        upload(api, "examples", CHAT * 40)
        names["upload"] = self.send("fine_tuning_uploads_create")["id"]
        data = {"data": json.dumps(FINE_TUNING_ROW).ljust(120).encode()}
        part = api.post(f"/openai/v1/uploads/{names['upload']}/parts", files=data).json()["id"]
        operation, _ = self.examples["fine_tuning_uploads_complete"]
        self.examples["fine_tuning_uploads_complete"] = (operation, {"part_ids": [part]})
        operation, example = self.examples["fine_tuning_jobs_create"]
        trained_on = {
            "model": str(self.gateway.data.parent / "model"),
            "training_file": names["upload"].replace("upload_", "file-"),
        }
        self.examples["fine_tuning_jobs_create"] = (operation, example | trained_on)
        names["chain"] = self.send("chains_create")["id"]
        api.post(f"/v1/chains/{names['chain']}/cancel")
        self.send("chains_resume")
        asked = self.submit({"data": {"dataset": "mine"}}, recipe="grpo", name="grpo")
        self.send("runs_update", run=asked)
        played = self.submit(AGENTS, recipe="grpo", name="agents")
        live = self.submit(LIVE, name="live")
        self._workers = [Player(self._redis_url, played), Player(self._redis_url, live)]
        self._workers.append(Sampler(self._redis_url, asked))
        for worker in self._workers:
            worker.start()
        lease = f"/v1/runs/{played}/groups/lease"
        eventually(lambda: api.post(lease).status_code == 201)
        for id in sorted(id for id, (path, _) in self.examples.items() if "/{session}/" in path)[
            ::-1
        ]:
            names["session"] = api.post(lease).json()["sessions"][0]["id"]
            if id == "session_conversations_add":
                talk = api.post(f"/v1/sessions/{names['session']}/v1/conversations", json={}).json()
                names["conversation"] = talk["id"]
            self.send(id)
        eventually(lambda: len(api.get("/v1/models").json()["data"]) > 0)
        # Before another run is called `grpo`.
        for id in POLICY:
            self.send(id)
        base = self.submit({"data": {"dataset": "mine"}}, recipe="grpo", name="base")
        trained(self._redis_url, self.gateway.data, base)
        names["name"] = f"ft:model:personal:base:{base}"
        # The reward service starts its workers again with a new verifier: score first.
        last = "verifiers_create"
        for id in [
            *sorted(self.examples.keys() - self.answers.keys() - {last}, reverse=True),
            last,
        ]:
            self.send(id, run={"sessions_create": live, "runs_fork": base}.get(id, played))
        leased = api.post(lease).json()
        names |= {
            "run": played,
            "session": leased["sessions"][0]["id"],
            "attempt": leased["attempt"],
        }
        names["file"] = api.get("/openai/v1/files").json()["data"][0]["id"]

    def close(self) -> None:
        for worker in self._workers:
            worker.ended.set()
            worker.join()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a Redis of its own: the examples of chats name a run, and other tests have runs
    of its name."""
    folder = tmp_path_factory.mktemp("world")
    (data := folder / "gateway" / "data").mkdir(parents=True)
    (model := data.parent / "model").mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (model / name).write_text("{}")
    (folder / "redis").mkdir()
    (server := RedisServer(folder / "redis")).start()
    # Its port stays when it starts again with another verifier.
    (port,) = own_ports("127.0.0.1", 1)
    flags = (f"--data={data}", "--verifier-uploads=true", f"--port={port}")
    reward = asyncio.run(Service(folder, *flags).ready())
    where = {"HEADRACE_REWARD_URL": reward.url, "HEADRACE_REWARD_KEY": KEY}
    gateway = GatewayProcess(data, server.url, **where)
    with gateway.client() as api:
        world = World(gateway, api, server.url)
        try:
            world.send_all()
            yield world
        finally:
            world.close()
            gateway.stop()
            reward.end()
            server.stop()


def test_every_example_is_accepted(world: World) -> None:
    refused = {id: answer.text for id, answer in world.answers.items() if not answer.is_success}
    assert not refused, refused
    assert not world.failed, "\n\n".join(world.failed.values())
    assert world.answers.keys() == world.examples.keys()


def try_operation(world: World, operation: Any) -> None:
    """Send generated requests, valid and invalid. Half of the bodies are the example except for one
    key. Raises FailureGroup for an answer that is not described."""
    example = world.example_of(operation.definition.raw)
    names = {name: world.names.get(name, "1") for name in re.findall(r"{(\w+)}", operation.path)}

    @seed(1)
    @settings(
        max_examples=CASES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=strategies.data())
    def send(data: Any) -> None:
        mode = data.draw(strategies.sampled_from(GenerationMode))
        named = data.draw(strategies.sampled_from([names, names, {}]))
        case = data.draw(operation.as_strategy(mode, path_parameters=named or None))
        if isinstance(example, dict) and isinstance(case.body, dict) and data.draw(BOOLEANS):
            key = data.draw(strategies.sampled_from(sorted({*example, *case.body})))
            case.body = {**example, key: case.body.get(key)}
        headers = world.gateway.headers
        answer = case.call(base_url=world.gateway.url, headers=headers, timeout=60)
        world.statuses[answer.status_code] += 1
        # The reward service starts its workers again with each verifier that is added.
        if not (answer.status_code == 503 and "/verifiers" in operation.path):
            case.validate_response(answer, checks=DESCRIBED)

    send()


def test_generated_requests_get_only_what_is_described(world: World) -> None:
    failed = []
    operations: list[Any] = [result.ok() for result in world.schema.get_all_operations()]  # type: ignore[union-attr]
    # What ends things comes last.
    operations.sort(key=lambda each: (each.method == "delete", each.path.endswith(ENDING)))
    for operation in operations:
        try:
            if operation.label not in FOLLOWED:
                try_operation(world, operation)
        except FailureGroup as group:
            failed.append(f"{operation.label}: {group.exceptions}")
    assert not failed, "\n\n".join(failed)
    # Deep enough: not all requests are refused.
    assert world.statuses[200] > len(operations), world.statuses
