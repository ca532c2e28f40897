"""Runs that exist: found, listed and cancelled."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from services.contracts.records import RunState
from services.store import Store
from tests.integration.gateway.servers import InStore, events_of

pytestmark = pytest.mark.usefixtures("sums")


def test_a_run_is_found_by_id_by_name_and_by_the_beginning_of_its_id(
    api: httpx.Client, submit: Any
) -> None:
    run = submit(name="by-name").json()["id"]

    for reference in (run, run[:-1], "by-name"):
        assert api.get(f"/v1/runs/{reference}").json()["id"] == run
    missing = api.get("/v1/runs/by-nam e")
    assert missing.status_code == 404
    assert "did you mean 'by-name'?" in missing.json()["detail"]


def test_runs_are_listed_newest_first_and_by_state(api: httpx.Client, submit: Any) -> None:
    first, second = (submit(name=f"listed-{n}").json()["id"] for n in (1, 2))
    api.post(f"/v1/runs/{first}/cancel")

    ids = [run["id"] for run in api.get("/v1/runs?limit=1000").json()["runs"]]
    queued = [run["id"] for run in api.get("/v1/runs?state=queued").json()["runs"]]

    assert ids.index(second) < ids.index(first)
    assert second in queued
    assert first not in queued


def test_a_list_comes_in_pages_without_configs(api: httpx.Client, submit: Any) -> None:
    ids = [submit(name="paged").json()["id"] for _ in range(3)]

    first = api.get("/v1/runs?name=paged&limit=2").json()
    second = api.get("/v1/runs", params={"name": "paged", "cursor": first["next"]}).json()

    assert [run["id"] for run in first["runs"] + second["runs"]] == ids[::-1]
    assert second["next"] is None
    assert first["runs"][0].keys().isdisjoint({"config", "warnings", "metrics"})
    assert all(len(json.dumps(run)) < 800 for run in first["runs"])
    for wrong in ("nonsense", "1.2.3-x", "1.5-x-y", "1e+5e-x", "-x"):
        refused = api.get("/v1/runs", params={"cursor": wrong})
        assert refused.status_code == 422, wrong
        assert "query.cursor" in refused.text, wrong
    assert api.get("/v1/runs?limit=0").status_code == 422


def test_a_run_has_the_tags_notes_and_submitter_of_its_submission(
    api: httpx.Client, submit: Any
) -> None:
    key = api.post("/v1/keys", json={"name": "alice", "role": "submit"}).json()
    alice = {"Authorization": f"Bearer {key['key']}"}
    made = submit(tags=["night shift", "b", "b"], notes="the third try", headers=alice).json()
    plain = submit().json()

    listed = {run["id"]: run for run in api.get("/v1/runs").json()["runs"]}
    assert (made["tags"], made["notes"], made["submitter"]) == (
        ["night shift", "b"], "the third try", "alice",
    )  # fmt: skip
    for run, record in ((made["id"], made), (plain["id"], plain)):
        assert {**listed[run], "disk_bytes": None} == {
            key: value for key, value in record.items() if key in listed[run]
        } | {"disk_bytes": None}
    assert (plain["tags"], plain["notes"], plain["submitter"]) == ([], "", "first key")
    for tags in ([""], ["a,b"], ["x" * 51], ["t"] * 21, [" a"], ["a\n"]):
        assert submit(tags=tags).status_code == 422, tags
    api.delete(f"/v1/keys/{key['id']}")


def test_a_list_that_is_the_same_is_not_sent_again(api: httpx.Client, submit: Any) -> None:
    run = submit(name="seen").json()["id"]
    path = "/v1/runs?name=seen"
    seen = {"If-None-Match": api.get(path).headers["etag"]}

    same = api.get(path, headers=seen)
    api.post(f"/v1/runs/{run}/cancel")
    changed = api.get(path, headers=seen)

    assert (same.status_code, same.content) == (304, b"")
    assert changed.json()["runs"][0]["state"] == "cancelled"


def test_a_queued_run_says_what_it_waits_for(api: httpx.Client, submit: Any) -> None:
    first = submit(name="first", pool="unserved").json()
    second = submit(name="second", pool="unserved").json()

    reason = "it is queued, and no learner serves pool 'unserved'"
    assert first["reason"] == second["reason"] == reason
    assert api.get(f"/v1/runs/{first['id']}").json()["reason"] == reason
    assert [run["reason"] for run in api.get("/v1/runs?pool=unserved").json()["runs"]] == [
        reason
    ] * 2


def test_a_run_that_is_asked_to_end_is_shown_as_cancelling_until_it_has(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit(pool="slow").json()["id"]

    async def train(store: Store) -> None:
        await store.runs.take("slow")
        await store.runs.set_state(run, "running", "")

    in_store(train)
    in_store(lambda store: store.pools.lock("slow", "learner", 60))
    asked = api.post(f"/v1/runs/{run}/cancel").json()
    listed = api.get("/v1/runs?state=cancelling").json()["runs"]
    in_store(lambda store: store.runs.finish(run, "slow", "cancelled", "on request"))

    assert (asked["state"], asked["reason"]) == ("cancelling", "it ends after its present step")
    assert asked["is_released"] is False
    assert [one["id"] for one in listed] == [run]
    states = [event["data"]["state"] for _, event in events_of(api, run)]
    assert states == ["running", "cancelling", "cancelled"]


def test_a_run_that_ends_at_once_is_answered_as_its_learner_leaves_it(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit(pool="busy").json()["id"]

    async def train(store: Store) -> None:
        await store.pools.lock("busy", "learner", 60)
        await store.runs.take("busy")
        await store.runs.set_state(run, "running", "")

    async def save_and_leave(store: Store) -> None:
        token = await store.runs.acquire(run, "9f3a1c")
        await store.runs.update(run, token, {"step": 16, "committed_step": 16})
        await store.runs.finish(run, "busy", "cancelled", "on request")

    in_store(train)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(api.post, f"/v1/runs/{run}/cancel?now=true")
        in_store(save_and_leave)
        answer = asked.result().json()
    assert (answer["state"], answer["is_released"]) == ("cancelled", True)
    assert answer["committed_step"] == 16


def test_a_queued_run_is_cancelled_at_once_and_twice_is_fine(
    api: httpx.Client, submit: Any
) -> None:
    run = submit().json()["id"]

    assert api.post(f"/v1/runs/{run}/cancel").json()["state"] == "cancelled"
    assert api.post(f"/v1/runs/{run}/cancel").status_code == 202


def test_a_run_that_is_over_cannot_be_cancelled(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]
    in_store(lambda store: store.runs.set_state(run, RunState.FAILED, "vLLM did not start"))

    refused = api.post(f"/v1/runs/{run}/cancel")

    assert refused.status_code == 409
    assert "it failed" in refused.json()["detail"]
