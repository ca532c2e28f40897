"""The gateway as a service: files, errors, health, metrics, the page, Redis going away."""

import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.store.connection import SILENCE_SECONDS
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload


@pytest.fixture
def weights(gateway: GatewayProcess) -> bytes:
    content = bytes(range(256))
    for name in ("weights/v000001-ab.safetensors", "checkpoints/step-000010/config.json"):
        path = gateway.data / "runs" / "r1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (gateway.data / "runs" / "r1" / "metrics.jsonl").write_text("{}\n")
    (gateway.data / "runs" / "r1" / "weights" / ".v2.tmp").write_text("half")
    return content


def test_weights_and_checkpoints_are_served_whole_and_in_part(
    api: httpx.Client, weights: bytes
) -> None:
    whole = api.get("/v1/files/runs/r1/weights/v000001-ab.safetensors")
    part = api.get(
        "/v1/files/runs/r1/checkpoints/step-000010/config.json", headers={"Range": "bytes=16-31"}
    )
    head = api.head("/v1/files/runs/r1/weights/v000001-ab.safetensors")

    assert whole.content == weights
    assert (part.status_code, part.content) == (206, weights[16:32])
    assert head.headers["content-length"] == "256"


def test_a_dataset_segment_is_served(api: httpx.Client) -> None:
    record = upload(api, "served", b'{"prompt": "a"}').json()
    segment = record["segments"][0]

    assert len(api.get(f"/v1/files/{segment['file']}").content) == segment["bytes"]


@pytest.mark.parametrize(
    "path",
    [
        "runs/r1/metrics.jsonl",
        "runs/r1/weights/.v2.tmp",
        "runs/r1/weights/%2e%2e/metrics.jsonl",
        "runs/r1/weights/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "datasets/%2e%2e/%2e%2e/etc/passwd",
        "%2fetc/passwd",
        "logs/gateway.log",
        "redis/appendonly.aof",
    ],
)
def test_nothing_else_of_the_volume_or_the_host_is_served(
    api: httpx.Client, weights: bytes, path: str
) -> None:
    response = api.get(f"/v1/files/{path}")

    assert response.status_code == 403
    assert "is not served" in response.json()["detail"]


def test_a_link_out_of_the_volume_is_not_followed(
    api: httpx.Client, gateway: GatewayProcess, weights: bytes
) -> None:
    link = gateway.data / "runs" / "r1" / "weights" / "passwd"
    link.symlink_to("/etc/passwd")

    assert api.get("/v1/files/runs/r1/weights/passwd").status_code == 404
    link.unlink()


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("GET", "/v2/runs", 404, "there is nothing at /v2/runs"),
        ("PUT", "/v1/runs", 405, "it takes GET, POST"),
        ("GET", "/v1/recipes/grop", 404, "did you mean 'grpo'?"),
        ("GET", "/v1/datasets/x/preview?limit=0", 404, "there is no dataset 'x'"),
        ("GET", "/v1/files/runs/r9/weights/none", 404, "there is no file"),
    ],
)
def test_every_error_is_a_problem_document(
    api: httpx.Client, method: str, path: str, status: int, sentence: str
) -> None:
    response = api.request(method, path)

    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (response.status_code, body["status"]) == (status, status)
    assert sentence in body["detail"]
    assert body["instance"] == path.partition("?")[0]


def test_recipes_are_listed_with_when_to_use_them(api: httpx.Client) -> None:
    listed = {recipe["name"]: recipe["when"] for recipe in api.get("/v1/recipes").json()["recipes"]}

    assert {"grpo", "smollm2_gsm8k"} <= set(listed)
    assert "# when:" in api.get("/v1/recipes/grpo").json()["text"]


def test_a_gateway_with_redis_and_a_volume_is_healthy_and_ready(api: httpx.Client) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    assert api.get("/readyz").status_code == 200
    text = api.get("/metrics").text
    assert "headrace_redis_up 1.0" in text
    assert 'headrace_runs{state="queued"}' in text


def test_a_pool_says_how_much_its_workers_have_to_do(api: httpx.Client, submit: Any) -> None:
    idle = {"run": None, "workers": 0, "groups_in_flight": 0, "groups_wanted": 0}
    assert api.get("/v1/load", params={"pool": "nobody"}).json() == idle | {
        "pool": "nobody",
        "queued": 0,
    }
    submit(pool="busy")
    assert api.get("/v1/load", params={"pool": "busy"}).json() == idle | {
        "pool": "busy",
        "queued": 1,
    }
    text = api.get("/metrics").text
    assert 'headrace_pool_queued{pool="busy"} 1.0' in text
    assert 'headrace_pool_groups_wanted{pool="busy"} 0.0' in text
    assert api.get("/v1/load", params={"pool": "No Name"}).status_code == 422


def test_the_description_names_problem_documents(api: httpx.Client) -> None:
    operation = api.get("/openapi.json").json()["paths"]["/v1/runs"]["post"]

    assert list(operation["responses"]["4XX"]["content"]) == ["application/problem+json"]
    assert operation["tags"] == ["runs"]


def test_without_redis_everything_answers_503_and_recovers(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    process = GatewayProcess(tmp_path / "data", server.url)
    try:
        with httpx.Client(base_url=process.url, headers=process.headers, timeout=30) as api:
            _answers_503(api)
            server.start()
            assert upload(api, "kept", b'{"prompt": "a"}').status_code == 201
            server.stop()
            _answers_503(api)
            server.start()
            assert api.get("/v1/datasets/kept").json()["rows"] == 1
            assert api.get("/readyz").status_code == 200
    finally:
        process.stop()
        server.stop()


def test_a_redis_that_falls_silent_is_away_too(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    process = GatewayProcess(tmp_path / "data", server.url)
    try:
        with httpx.Client(
            base_url=process.url, headers=process.headers, timeout=SILENCE_SECONDS + 10
        ) as api:
            assert api.get("/v1/runs").status_code == 200
            server.freeze()
            silent = api.get("/v1/runs")
            server.thaw()

            assert silent.status_code == 503
            assert "Redis cannot be reached" in silent.json()["detail"]
            assert api.get("/v1/runs").status_code == 200
    finally:
        process.stop()
        server.stop()


def test_a_redis_that_comes_later_and_may_lose_work_is_never_ready(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, fsync="everysec")
    process = GatewayProcess(tmp_path / "data", server.url)
    try:
        with httpx.Client(base_url=process.url, headers=process.headers, timeout=30) as api:
            server.start()
            ready = api.get("/readyz")

            assert ready.status_code == 503
            assert "appendfsync everysec, which may lose" in ready.json()["detail"]
    finally:
        process.stop()
        server.stop()


def _answers_503(api: httpx.Client) -> None:
    for path in ("/v1/runs", "/v1/datasets", "/readyz"):
        response = api.get(path)
        assert response.status_code == 503, response.text
        assert "Redis" in response.json()["detail"]
        assert int(response.headers["retry-after"]) > 0
    assert api.get("/healthz").status_code == 200
    assert "headrace_redis_up 0.0" in api.get("/metrics").text


def test_the_api_page_needs_no_other_host(api: httpx.Client) -> None:
    page = api.get("/docs")

    assert page.status_code == 200
    asked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert asked
    for path in asked:
        assert path.startswith("/"), path
        assert api.get(path).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_stops_with_exit_code_0(
    tmp_path: Path, redis_server: RedisServer, number: int
) -> None:
    process = GatewayProcess(tmp_path / "data", redis_server.url)
    assert process.stop(number) == 0
    assert "Traceback" not in process.said
