"""No request gets a 5xx or stops another. `python -m tests.security.fuzz` sends many more."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.learner.conftest import Place
from tests.security.fuzz import Fuzzer
from tests.security.fuzz_target import Target, prepared, uploaded

SECONDS = 12.0
CASES = 3000
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        tmp_path_factory.mktemp("gateway") / "data",
        redis_server.url,
        HEADRACE_UPLOAD_LIMIT=str(64 << 20),
    )
    yield process
    process.stop()


def test_hostile_requests_get_no_5xx_and_a_run_succeeds_after_them(
    gateway: GatewayProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    target = Target(gateway.url, gateway.headers["Authorization"])
    document = prepared(target, "org/model")
    deadline = time.monotonic() + SECONDS

    failed = Fuzzer(target, document, SEED).run(CASES, lambda: time.monotonic() > deadline)

    assert failed == [], f"seed {SEED}"
    assert succeeds(target, Place(redis_server.url, gateway.data))


WIDE = {
    "unknown keys": ("/v1/runs", {"config": {f"key{i}": i for i in range(45_000)}}),
    "unknown keys of a section": (
        "/v1/runs",
        {"config": {"trainer": {f"key{i}": i for i in range(45_000)}}},
    ),
    "lists of nothing": ("/v1/runs", {"config": {"model": [[]] * 250_000}}),
    "rows of nothing": ("/v1/prompts", {"dataset": "wide", "prompts": [[]] * 2_000_000}),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_body_is_explained_in_part_and_costs_the_gateway_little(
    gateway: GatewayProcess, name: str
) -> None:
    path, body = WIDE[name]
    target, before = Target(gateway.url, gateway.headers["Authorization"]), gateway.cpu_seconds
    status, problem = target.json("POST", path, body)
    # CPU time instead of a clock, because other tests run at the same time.
    spent = gateway.cpu_seconds - before
    assert spent < 6
    assert status == 422
    assert len(json.dumps(problem)) < 20_000
    if name == "unknown keys":
        assert "its config has 45,003 problems, of which 50 are listed" in problem["detail"]
        assert len(problem["problems"]) == 50


def test_a_body_larger_than_any_config_is_refused_for_its_size(gateway: GatewayProcess) -> None:
    target = Target(gateway.url, gateway.headers["Authorization"])
    status, problem = target.json("POST", "/v1/runs", {"name": "x" * (1 << 20)})
    assert status == 413, problem


def succeeds(target: Target, place: Place) -> bool:
    """Whether a real learner trains a small run to its end."""
    uploaded(target, "after")
    config = {
        "data": {"dataset": "after"},
        "training": {"max_steps": 1, "rows_per_step": 4},
    }
    status, run = target.json("POST", "/v1/runs", {"recipe": "demo_sft", "config": config})
    assert status == 201, run
    learner = place.learner()
    try:
        while run["state"] not in ("succeeded", "failed"):
            time.sleep(0.2)
            run = target.json("GET", f"/v1/runs/{run['id']}")[1]
    finally:
        learner.terminate()
        learner.wait()
    assert run["state"] == "succeeded", run["reason"]
    return True
