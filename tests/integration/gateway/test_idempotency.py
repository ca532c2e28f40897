"""Writes that are sent again with their Idempotency-Key."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.http.body_limits import SMALL
from tests.integration.gateway.servers import GatewayProcess, RedisServer, upload

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture(scope="module")
def second(gateway: GatewayProcess, redis_server: RedisServer) -> Iterator[httpx.Client]:
    """Another gateway of the same installation."""
    process = GatewayProcess(gateway.data, redis_server.url)
    with process.client() as client:
        yield client
    process.stop()


def keyed() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def test_a_repeated_submission_gets_the_first_run_from_any_gateway(
    api: httpx.Client, second: httpx.Client, submit: Any
) -> None:
    headers = keyed()
    first = submit(name="once", headers=headers)
    body = first.request.content
    assert (first.status_code, "Idempotent-Replayed" in first.headers) == (201, False)

    for client in (api, second):
        json = {"content-type": "application/json", **headers}
        again = client.post("/v1/runs", content=body, headers=json)
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert again.content == first.content
        assert again.headers["content-type"] == first.headers["content-type"]
    assert len(api.get("/v1/runs?name=once").json()["runs"]) == 1

    other = submit(name="another", headers=headers)
    assert other.status_code == 422
    assert "was sent with another request" in other.json()["detail"]
    assert not api.get("/v1/runs?name=another").json()["runs"]


def test_a_key_belongs_to_its_api_key_and_an_unusable_one_is_refused(
    api: httpx.Client, submit: Any
) -> None:
    headers = keyed()
    mine = submit(headers=headers).json()["id"]
    alice = api.post("/v1/keys", json={"name": "alice"}).json()
    theirs = submit(headers={**headers, "Authorization": f"Bearer {alice['key']}"}).json()["id"]
    assert mine != theirs
    api.delete(f"/v1/keys/{alice['id']}")
    for key in ("", "a b", "x" * 256):
        refused = submit(headers={"Idempotency-Key": key})
        assert (refused.status_code, "visible ASCII" in refused.text) == (400, True), key


def test_a_refused_request_may_be_mended_and_sent_with_its_key(
    api: httpx.Client, submit: Any
) -> None:
    headers = keyed()
    assert submit({"training": {"max_steps": "many"}}, headers=headers).status_code == 422
    assert submit({"training": {"max_steps": 2}}, headers=headers).status_code == 201


def test_a_redirect_keeps_no_key(api: httpx.Client) -> None:
    named = {"name": "redirected"}
    made = api.post("/v1/keys/", json=named, headers=keyed(), follow_redirects=True)
    assert made.status_code == 201
    for key in api.get("/v1/keys").json()["keys"]:
        api.delete(f"/v1/keys/{key['id']}")


def test_requests_at_once_make_one_run_and_the_others_get_a_time_to_wait(
    api: httpx.Client, submit: Any
) -> None:
    headers = keyed()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: submit(name="at-once", headers=headers), range(4)))

    runs = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    waiting = [answer for answer in answers if answer.status_code != 201]
    assert len(runs) == 1
    assert all(answer.status_code == 409 for answer in waiting)
    assert all(1 <= int(answer.headers["Retry-After"]) <= 5 for answer in waiting)
    assert len(api.get("/v1/runs?name=at-once").json()["runs"]) == 1


def test_no_secret_is_kept_for_a_repeated_request(api: httpx.Client) -> None:
    headers = keyed()
    made = api.post("/v1/keys", json={"name": "secret"}, headers=headers)
    again = api.post("/v1/keys", json={"name": "secret"}, headers=headers)
    assert (made.status_code, again.status_code) == (201, 409)
    assert made.json()["key"] not in again.text
    assert "only that answer showed it" in again.json()["detail"]
    assert [key["name"] for key in api.get("/v1/keys").json()["keys"]] == ["secret"]
    revoke = keyed()
    for _ in range(2):
        gone = api.delete(f"/v1/keys/{made.json()['id']}", headers=revoke)
        assert gone.status_code == 204
    assert gone.headers["Idempotent-Replayed"] == "true"


def test_rows_are_appended_once(api: httpx.Client) -> None:
    upload(api, "grows-once", b'{"question": "1", "answer": "2"}\n')
    headers, rows = keyed(), [{"prompt": "x" * SMALL, "answer": "y"}]
    for _ in range(2):
        added = api.post(
            "/v1/prompts", json={"dataset": "grows-once", "prompts": rows}, headers=headers
        )
        assert added.json() | {"dataset": ""} == {"dataset": "", "added": 1, "first": 1, "rows": 2}
    assert api.get("/v1/datasets/grows-once").json()["rows"] == 2


@pytest.mark.parametrize("moment", ["finish", "list"])
def test_a_run_is_made_once_though_its_gateway_was_killed_before_it_answered(
    moment: str, api: httpx.Client, submit: Any, gateway: GatewayProcess,
    redis_server: RedisServer, model: Path,
) -> None:  # fmt: skip
    module = ("tests.integration.gateway.dying_gateway",)
    dying = GatewayProcess(gateway.data, redis_server.url, module=module, DIES_AT=moment)
    name, headers = f"killed-at-{moment}", keyed()
    config = {"model": {"path": str(model)}, "data": {"dataset": "sums"}}
    request = {"recipe": "grpo", "config": config, "name": name}
    with dying.client() as client, pytest.raises(httpx.TransportError):
        client.post("/v1/runs", json=request, headers=headers)
    dying.stop()

    began, first = time.monotonic(), submit(name=name, headers=headers)
    assert (first.status_code, int(first.headers["Retry-After"]) <= 5) == (409, True)
    again = first
    while again.status_code == 409:
        again = submit(name=name, headers=headers)
    assert time.monotonic() - began < 15
    assert again.status_code == 201
    (listed,) = api.get(f"/v1/runs?name={name}").json()["runs"]
    assert (listed["id"], listed["state"]) == (again.json()["id"], "queued")
    assert submit(name=name, headers=headers).headers["Idempotent-Replayed"] == "true"
    # It stands in the queue.
    cancelled = api.post(f"/v1/runs/{listed['id']}/cancel").json()
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled before it started")
