"""Two gateways on one Redis and one data volume: they begin at once with one key, and whatever
clients do at both, what is listed is there."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.gateway.servers import GatewayProcess, RedisServer

ROUNDS = 25


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """Clients of two gateways that were started at the same moment on an empty folder."""
    redis = RedisServer(tmp_path)
    redis.start()
    # A gateway ends with the thread that has started it.
    with ThreadPoolExecutor(2) as pool:
        folders = [tmp_path / "data"] * 2
        started = list(pool.map(lambda data: GatewayProcess(data, redis.url), folders))
        clients = [gateway.client() for gateway in started]
        yield clients
        for client in clients:
            client.close()
        codes = [gateway.stop() for gateway in started]
    redis.stop()
    assert codes == [0, 0]


def test_uploads_and_deletions_at_both_leave_no_dataset_without_its_rows(
    gateways: list[httpx.Client],
) -> None:
    def play(player: int) -> list[tuple[str, int]]:
        api, chance = gateways[player % 2], random.Random(player)
        answers = []
        for _ in range(ROUNDS):
            name = chance.choice(["sums", "more"])
            if chance.random() < 0.5:
                files = {"file": (f"{name}.jsonl", b'{"prompt": "1+1", "answer": "2"}\n' * 3)}
                answers.append(("up", api.post("/v1/datasets", files=files).status_code))
            else:
                answers.append(("rm", api.delete(f"/v1/datasets/{name}").status_code))
        return answers

    with ThreadPoolExecutor(6) as pool:
        seen = {answer for answers in pool.map(play, range(6)) for answer in answers}

    # 409: one of two deletions is told that the dataset changed meanwhile.
    assert seen <= {("up", 200), ("up", 201), ("rm", 204), ("rm", 404), ("rm", 409)}
    assert {("up", 201), ("rm", 204)} <= seen
    for api in gateways:
        for dataset in api.get("/v1/datasets").json()["datasets"]:
            preview = api.get(f"/v1/datasets/{dataset['id']}/preview")
            assert preview.status_code == 200, preview.text
            assert preview.json()["total"] == 3


def test_a_key_that_one_gateway_revokes_opens_the_other_no_more(
    gateways: list[httpx.Client],
) -> None:
    first, second = gateways
    made = first.post("/v1/keys", json={"name": "mine"}).json()
    shown = {"Authorization": f"Bearer {made['key']}"}
    assert second.get("/v1/runs", headers=shown).status_code == 200
    assert first.delete(f"/v1/keys/{made['id']}").status_code == 204
    assert second.get("/v1/runs", headers=shown).status_code == 401
