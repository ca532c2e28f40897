"""One bad record stops only itself: whatever lies in Redis, gateway, store and learner go on."""

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from services.contracts.records import WorkerRecord
from services.store import Store, Unreadable
from services.store.keys import (
    API_KEYS,
    CHANGES,
    DATASET_NAMES,
    DATASETS,
    LOGS,
    POOLS,
    RUN_PARTS,
    RUNS,
    pool_key,
    run_key,
)
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload
from tests.integration.launch.conditions import eventually
from tests.integration.learner.conftest import Place
from tests.integration.store.scene import record

SURROGATE = "\ud800".encode("utf-8", "surrogatepass")
GARBAGE: list[bytes] = [b"", b"{", b"null", b"[]", b'"x"', b"{}", b"\xff\x00", SURROGATE, b"NaN"]
DEEP = b"[" * 5000 + b"]" * 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), fsync="no")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, server: RedisServer
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        tmp_path_factory.mktemp("gateway") / "data",
        server.url,
        HEADRACE_ALLOW_UNSAFE_REDIS="true",
    )
    yield process
    process.stop()


@pytest.fixture
def api(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        yield client


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Any]:
    """Typed as Any: redis-py types replies as str or bytes; ours are bytes."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
async def store(server: RedisServer, raw: Any) -> AsyncIterator[Store]:
    store = Store.from_url(server.url)
    yield store
    await store.close()


def put(raw: Any, id: str, changed: Mapping[str, bytes | None] = {}, queued: bool = True) -> None:
    """Write a queued run straight into Redis with some fields changed or, for None, left out."""
    fields: dict[str, Any] = {
        "id": id,
        "name": f"run-{id}",
        "pool": "default",
        "kind": "rl",
        "state": "queued",
        "created": time.time(),
        "config": json.dumps(record().config),
        "max_steps": 10,
        **changed,
    }
    raw.hset(run_key(id, "run"), mapping={n: v for n, v in fields.items() if v is not None})
    raw.zadd(RUNS, {id: time.time()})
    raw.xadd(CHANGES, {"run": id})
    if queued:
        raw.zadd(pool_key("default", "queue"), {id: time.time()})


BROKEN_RUNS: dict[str, dict[str, bytes | None]] = {
    "config-cut": {"config": b'{"data": {"data'},
    "config-null": {"config": b"null"},
    "config-of-another-shape": {"config": b'{"data": 5, "model": []}'},
    "config-half-surrogate": {"config": b'{"data": {"template": "\\ud800"}}'},
    "config-bytes": {"config": b'{"data": {"template": "' + SURROGATE + b'"}}'},
    "config-deep": {"config": DEEP},
    "config-huge-number": {"config": b'{"data": {"seed": ' + b"9" * 5000 + b"}}"},
    "config-missing": {"config": None},
    "name-bytes": {"name": SURROGATE},
    "name-missing": {"name": None},
    "pool-missing": {"pool": None},
    "state-unknown": {"state": b"resting"},
    "state-missing": {"state": None},
    "kind-missing": {"kind": None},
    "created-words": {"created": b"yesterday"},
    "step-words": {"step": b"one"},
    "metrics-words": {"metrics": b'{"loss": "low"}'},
    "metrics-nan": {"metrics": b'{"loss": NaN}'},
    "warnings-object": {"warnings": b"{}"},
    "priority-huge": {"priority": b"9" * 5000},
    "token-words": {"fencing_token": b"one", "config": b"{"},
}


@pytest.mark.parametrize("changed", BROKEN_RUNS.values(), ids=BROKEN_RUNS)
def test_a_broken_run_is_listed_cancelled_and_deleted_and_stops_no_list(
    api: httpx.Client, raw: Any, changed: dict[str, bytes | None]
) -> None:
    put(raw, "00000001")
    put(raw, "0000000b", changed)

    runs = {run["id"]: run for run in api.get("/v1/runs").raise_for_status().json()["runs"]}
    shown = api.get("/v1/runs/0000000b").raise_for_status().json()
    others = [api.get(path).status_code for path in ("/v1/datasets", "/metrics", "/v1/load")]
    asked = [api.get(f"/v1/runs/0000000b/{part}").status_code for part in ("why", "audit")]
    cancelled = api.post("/v1/runs/0000000b/cancel")
    deleted = api.delete("/v1/runs/0000000b")

    assert set(runs) == {"00000001", "0000000b"}
    assert runs["00000001"]["damage"] is None
    assert "cannot be read" in shown["damage"]
    assert others == [200, 200, 200]
    assert all(code < 500 for code in asked)
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    assert deleted.status_code == 204
    assert [run["id"] for run in api.get("/v1/runs").json()["runs"]] == ["00000001"]


@pytest.mark.parametrize("part", ["run", "events", "order", "held", "groups", "ledger", "plans"])
def test_a_key_of_another_type_stops_only_its_run(api: httpx.Client, raw: Any, part: str) -> None:
    put(raw, "00000001")
    put(raw, "0000000b")
    raw.delete(run_key("0000000b", part))
    raw.set(run_key("0000000b", part), "a string")

    codes = {
        path: api.get(path).status_code
        for path in (
            *("/v1/runs", "/metrics", "/v1/runs/00000001", "/v1/runs/0000000b"),
            *("/v1/runs/0000000b/why", "/v1/runs/0000000b/audit", "/v1/runs/0000000b/metrics"),
        )
    }
    cancelled, deleted = (
        api.post("/v1/runs/0000000b/cancel").status_code,
        api.delete("/v1/runs/0000000b").status_code,
    )

    assert codes["/v1/runs"] == codes["/metrics"] == codes["/v1/runs/00000001"] == 200
    assert max(codes.values()) < 500
    assert (cancelled, deleted) == (202, 204)
    assert not any(raw.exists(run_key("0000000b", one)) for one in RUN_PARTS)


def test_lists_survive_names_that_are_not_text(api: httpx.Client, raw: Any) -> None:
    put(raw, "00000001")
    raw.zadd(RUNS, {SURROGATE: 5e9, "../../etc": 5e9})
    raw.sadd(POOLS, SURROGATE)
    raw.zadd(pool_key("default", "queue"), {SURROGATE: 0})
    raw.hset(run_key("../../etc", "run"), mapping={"id": "../../etc", "state": "queued"})

    listed = api.get("/v1/runs").raise_for_status().json()["runs"]

    assert "00000001" in {run["id"] for run in listed}
    assert api.get("/metrics").status_code == api.get("/v1/workers").status_code == 200


@pytest.mark.parametrize("text", [*GARBAGE, DEEP], ids=range(len(GARBAGE) + 1))
def test_a_broken_dataset_is_listed_and_deleted_and_not_trained_on(
    api: httpx.Client, raw: Any, text: bytes
) -> None:
    whole = upload(api, "whole", b'{"prompt": "a", "answer": "b"}\n').json()
    raw.hset(DATASETS, "deadbeef", text)
    raw.hset(DATASET_NAMES, "broken", "deadbeef")

    listed = {
        dataset["id"]: dataset
        for dataset in api.get("/v1/datasets").raise_for_status().json()["datasets"]
    }
    config = {"model": {"path": "org/model"}, "data": {"dataset": "broken"}}
    refused = api.post("/v1/runs", json={"recipe": "grpo", "config": config})
    added = api.post("/v1/prompts", json={"dataset": "broken", "prompts": [{"prompt": "a"}]})
    preview = api.get("/v1/datasets/broken/preview").status_code
    again = upload(api, "broken", b'{"prompt": "a"}\n')

    assert listed[whole["id"]]["damage"] is None
    assert "cannot be read" in listed["deadbeef"]["damage"]
    assert (refused.status_code, added.status_code, preview) == (422, 409, 200)
    assert "datasets rm deadbeef" in again.json()["detail"]
    assert api.delete("/v1/datasets/deadbeef").status_code == 204
    assert upload(api, "broken", b'{"prompt": "a"}\n').status_code == 201


def test_broken_workers_and_keys_are_left_out(api: httpx.Client, raw: Any) -> None:
    raw.sadd(POOLS, "default")
    good = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    for number, text in enumerate([*GARBAGE, good.model_dump_json().encode()]):
        raw.hset(pool_key("default", "workers"), str(number), text)
        raw.zadd(pool_key("default", "heartbeats"), {str(number): time.time() * 1000})
        raw.hset(API_KEYS, f"digest-{number}", text)
    raw.zadd(pool_key("default", "heartbeats"), {"in-one-key-alone": time.time() * 1000})

    workers = api.get("/v1/workers").raise_for_status().json()["workers"]

    assert [worker["id"] for worker in workers] == ["w"]
    assert api.get("/v1/keys").raise_for_status().json()["keys"] == []
    assert api.delete("/v1/keys/none").status_code == 404


def test_a_broken_event_is_shown_as_a_warning(api: httpx.Client, raw: Any) -> None:
    put(raw, "00000001", {"state": b"cancelled"}, queued=False)
    key = run_key("00000001", "events")
    raw.xadd(key, {"kind": "state", "time": 1, "data": "{}"})
    raw.xadd(key, {"kind": "state", "time": 1})
    raw.xadd(key, {"kind": "unheard", "time": 1, "data": "{}"})
    for text in (*GARBAGE, DEEP):
        raw.xadd(key, {"kind": "step", "time": text, "data": text})
    raw.xadd(key, {"kind": "warning", "time": 2, "data": '{"message": "the last"}'})

    lines = api.get("/v1/runs/00000001/events").raise_for_status().text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]

    assert len(events) == raw.xlen(key)
    assert events[0]["kind"] == "state"
    assert all("cannot be read" in event["data"]["message"] for event in events[1:-1])
    assert events[-1]["data"] == {"message": "the last"}


def manifest(**changed: Any) -> bytes:
    fields = {
        "run": "r1",
        "version": 1,
        "lineage": "a",
        "kind": "full",
        "files": [{"name": "v", "bytes": 1, "xxh3": "ab"}],
        "tensors": 0,
        "model": "m",
        "schema": 2,
    }
    return json.dumps({n: v for n, v in (fields | changed).items() if v is not None}).encode()


async def test_workers_get_the_newest_manifest_that_can_be_read(store: Store, raw: Any) -> None:
    key = run_key("r1", "weights")
    raw.xadd(key, {"manifest": manifest()})
    for text in (*GARBAGE, manifest(version="two"), manifest(files=None), manifest(files=[]), DEEP):
        raw.xadd(key, {"manifest": text})
    raw.xadd(key, {"something": "else"})

    newest = await store.weights.newest("r1")
    followed = await store.weights.newest_after("r1", "0", 0.1)

    assert newest is not None
    assert newest.version == 1
    assert followed is not None
    # It waits for what comes after the broken ones.
    assert await store.weights.newest_after("r1", followed[0], 0.1) is None


async def test_a_broken_group_leaves_the_stream_and_its_task_is_sampled_again(
    store: Store, raw: Any
) -> None:
    await store.runs.submit(record())
    await store.runs.acquire("r1", "a")
    whole = {
        "task": "0:0:5:0",
        "min_version": "0",
        "lineage": "a",
        "bytes": "7",
        "lengths": "4:2,3",
    }
    key = run_key("r1", "groups")
    raw.xadd(key, whole)
    wrong = [
        ("min_version", "x"),
        ("lineage", SURROGATE),
        ("bytes", "1e3"),
        ("lengths", "4:-1"),
        ("task", "x"),
    ]
    for position, (name, value) in enumerate(wrong, start=1):
        raw.xadd(key, {**whole, "task": f"{position}:0:5:{position}", name: value})
    raw.xadd(key, {"min_version": "0", "lineage": "a"})
    raw.xadd(key, whole | {"task": "9:0:10:9"})

    groups = await store.trajectories.read("r1", wait=0.1)

    assert [group.task for group in groups] == ["0:0:5:0", "9:0:10:9"]
    assert raw.xlen(key) == 2
    returned = raw.zrange(run_key("r1", "returned"), 0, -1)
    assert returned == [b"1:0:5:1", b"2:0:5:2", b"3:0:5:3", b"4:0:5:4"]


async def test_broken_open_tasks_are_not_leased_and_end_with_their_run(
    store: Store, raw: Any
) -> None:
    put(raw, "r1", {"state": b"cancelled"}, queued=False)
    raw.zadd(run_key("r1", "returned"), {"nonsense": 0, SURROGATE: 1})
    raw.hset(run_key("r1", "held"), "attempt", "")
    raw.xadd(run_key("r1", "groups"), {"task": "nonsense"})
    raw.set(run_key("r1", "attempts"), "a string")

    await store.runs.finish("r1", "default", "cancelled", "")

    assert not raw.exists(run_key("r1", "held"))


async def test_a_run_that_cannot_be_read_back_is_not_written(store: Store, raw: Any) -> None:
    broken = record()
    broken.config["data"]["template"] = "\ud800{prompt}="

    with pytest.raises(ValueError, match="surrogate"):
        await store.runs.submit(broken)

    # The gateway's own log may be there.
    assert set(raw.keys("*")) <= {LOGS.encode()}


async def test_an_audit_names_what_it_cannot_read(store: Store, raw: Any) -> None:
    await store.runs.submit(record())
    raw.xadd(run_key("r1", "ledger"), {"end": "trained", "tasks": "{"})

    with pytest.raises(Unreadable, match="ledger of run r1"):
        await store.ledger.audit("r1")


async def test_a_backup_holds_broken_records_as_they_are(store: Store, raw: Any) -> None:
    put(raw, "0000000b", {"config": b"{"})
    raw.set(run_key("0000000b", "blobs"), "a string")
    raw.zadd(RUNS, {SURROGATE: 1})

    parts = [part async for part in store.dumps.read()]
    raw.flushall()
    await store.dumps.begin("b")
    for part in parts:
        await store.dumps.write(part)
    await store.dumps.end()

    restored = await store.runs.get("0000000b")
    assert raw.get(run_key("0000000b", "blobs")) == b"a string"
    assert restored is not None
    assert restored.damage is not None


def test_the_learner_fails_broken_runs_with_the_reason_and_goes_on(
    raw: Any, server: RedisServer, tmp_path: Path
) -> None:
    raw.config_set("appendfsync", "always")
    raw.config_set("maxmemory-policy", "noeviction")
    raw.zadd(pool_key("default", "queue"), {SURROGATE: 0, "gone": 1})
    for number, changed in enumerate(BROKEN_RUNS.values()):
        put(raw, f"0000b0{number:02}", changed)
    for number, part in enumerate(("run", "order", "held", "groups", "attempts", "events")):
        put(raw, f"0000c0{number:02}")
        raw.delete(run_key(f"0000c0{number:02}", part))
        raw.set(run_key(f"0000c0{number:02}", part), "a string")
    put(raw, "00000001")
    place = Place(server.url, tmp_path)
    learner = place.learner()
    try:
        eventually(lambda: raw.hget(run_key("00000001", "run"), "state") == b"failed", within=200)
    finally:
        learner.terminate()

    assert learner.wait() == 0, place.log.read_text()[-3000:]
    last = raw.hmget(run_key("00000001", "run"), ["state", "reason"])
    first = raw.hmget(run_key("0000b000", "run"), ["state", "reason"])
    assert last[0] == first[0] == b"failed"
    assert b"model" in (last[1] or b"")
    assert b"config" in (first[1] or b"")
    assert not raw.exists(pool_key("default", "active"))
