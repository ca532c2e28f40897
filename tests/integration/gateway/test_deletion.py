"""Deleting runs: what goes, what stays, who still needs one, and a gateway that dies over it."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from redis import Redis
from safetensors.numpy import save_file

from services.store import Store
from services.store.keys import RUNS, pool_key, run_key
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore, RedisServer
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture
def ended(api: httpx.Client, submit: Any, gateway: GatewayProcess, in_store: InStore) -> Any:
    """Makes runs that are over: id by id, with a checkpoint each."""

    def make(**submission: Any) -> str:
        response = submit(**submission)
        assert response.status_code == 201, response.text
        run: str = response.json()["id"]
        folder = f"runs/{run}/checkpoints/step-000005"
        (gateway.data / folder).mkdir(parents=True)
        weights = {"weight": np.zeros(2, np.float32)}
        save_file(weights, gateway.data / folder / "model.safetensors")
        (gateway.data / folder / "config.json").write_text("{}")
        (gateway.data / folder / "tokenizer_config.json").write_text("{}")
        (gateway.data / folder / "manifest.json").write_text('{"files": {}}')

        async def train(store: Store) -> None:
            fencing_token = await store.runs.acquire(run, "9f3a1c")
            await store.runs.update(run, fencing_token, {"checkpoint": folder, "committed_step": 5})

        in_store(train)
        api.post(f"/v1/runs/{run}/cancel").raise_for_status()
        return run

    return make


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(redis_server.url) as client:
        yield client


def test_a_deleted_run_leaves_nothing_but_its_dataset(
    api: httpx.Client, ended: Any, gateway: GatewayProcess, redis: Redis
) -> None:
    run, other = ended(), ended()
    assert redis.keys(f"*{run}*")
    assert redis.zscore(RUNS, run)

    assert api.delete(f"/v1/runs/{run}").status_code == 204

    assert redis.keys(f"*{run}*") == []
    assert redis.zscore(RUNS, run) is None
    assert [path.name for path in (gateway.data / "runs").iterdir() if run in path.name] == []
    assert api.get(f"/v1/runs/{run}").status_code == 404
    assert api.delete(f"/v1/runs/{run}").status_code == 404
    assert run not in [one["id"] for one in api.get("/v1/runs?limit=1000").json()["runs"]]
    assert api.get(f"/v1/runs/{other}").json()["state"] == "cancelled"
    assert (gateway.data / f"runs/{other}/checkpoints").is_dir()
    assert api.get("/v1/datasets/sums").status_code == 200


def test_an_unfinished_run_cannot_be_deleted(api: httpx.Client, submit: Any) -> None:
    run = submit(name="mine").json()["id"]

    refused = api.delete(f"/v1/runs/{run}")

    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        f"run mine ({run}) is queued: cancel it, and delete it once it is over"
    )
    assert api.get(f"/v1/runs/{run}").json()["state"] == "queued"


def test_a_run_that_others_need_stays_until_they_are_gone_or_over(
    api: httpx.Client, ended: Any, submit: Any, gateway: GatewayProcess
) -> None:
    first = ended()
    second = ended(resume_from=first)

    continued = api.delete(f"/v1/runs/{first}")
    starts = submit({"model": {"path": f"run:{first}"}}).json()["id"]
    api.delete(f"/v1/runs/{second}").raise_for_status()
    begun = api.delete(f"/v1/runs/{first}")
    api.post(f"/v1/runs/{starts}/cancel").raise_for_status()
    free = api.delete(f"/v1/runs/{first}")

    assert (continued.status_code, begun.status_code, free.status_code) == (409, 409, 204)
    assert f"({second}, cancelled), which continues it" in continued.json()["detail"]
    assert f"({starts}, queued), which starts from what it made" in begun.json()["detail"]


def test_a_run_that_its_learner_still_holds_is_not_deleted(
    api: httpx.Client, ended: Any, gateway: GatewayProcess, redis: Redis
) -> None:
    run = ended()
    active = pool_key("default", "active")

    def begin() -> Future[httpx.Response]:
        deletion = pool.submit(api.delete, f"/v1/runs/{run}")
        eventually(lambda: redis.hexists(run_key(run, "run"), "deleting"))
        return deletion

    redis.set(active, run)
    with ThreadPoolExecutor(1) as pool:
        refused = begin()
        assert not wait([refused], 60).not_done
        assert (gateway.data / f"runs/{run}/checkpoints").is_dir(), "untouched"
        waiting = begin()
        redis.delete(active)

    assert refused.result().status_code == 409
    assert "has not released" in refused.result().json()["detail"]
    assert waiting.result().status_code == 204


def test_no_run_is_submitted_that_needs_one_which_is_being_deleted(
    api: httpx.Client, ended: Any, submit: Any, in_store: InStore
) -> None:
    run = ended()
    before = {run["id"] for run in api.get("/v1/runs?limit=1000").json()["runs"]}

    in_store(lambda store: store.runs.mark_deleting(run))
    continues = submit(resume_from=run)
    starts = submit({"model": {"path": f"run:{run}"}})

    for refused in (continues, starts):
        assert refused.status_code == 409, refused.text
        assert f"the run was not queued: run {run} is being deleted" in refused.json()["detail"]
    assert {one["id"] for one in api.get("/v1/runs?limit=1000").json()["runs"]} == before
    # A deletion that broke off is repeated.
    assert api.delete(f"/v1/runs/{run}").status_code == 204


def test_a_run_that_could_not_be_deleted_can_be_continued(
    api: httpx.Client, ended: Any, submit: Any, redis: Redis
) -> None:
    run = ended()
    starts = submit({"model": {"path": f"run:{run}"}}).json()["id"]

    assert api.delete(f"/v1/runs/{run}").status_code == 409
    assert submit(resume_from=run).status_code == 201
    assert api.get(f"/v1/runs/{starts}").json()["state"] == "queued"


def test_the_files_of_a_run_that_was_moved_to_another_volume_go_with_it(
    api: httpx.Client, ended: Any, gateway: GatewayProcess, tmp_path: Path
) -> None:
    run = ended()
    folder, elsewhere = gateway.data / "runs" / run, tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)

    assert api.delete(f"/v1/runs/{run}").status_code == 204

    assert not elsewhere.exists()
    assert [path.name for path in (gateway.data / "runs").iterdir() if run in path.name] == []


def test_a_gateway_that_starts_removes_what_a_deletion_has_left(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    left, whole = tmp_path / "data/runs/.deleted-9f3a1c00", tmp_path / "data/runs/7be2d410"
    for folder in (left, whole):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/model.safetensors").write_bytes(b"weights")

    GatewayProcess(tmp_path / "data", redis_server.url).stop()

    assert not left.exists()
    assert (whole / "checkpoints/model.safetensors").exists()


def test_in_a_terminal_runs_are_named_and_asked_about_before_they_go(
    api: httpx.Client, ended: Any, headrace: Headrace, environment: dict[str, str]
) -> None:
    first = ended()
    second = ended(resume_from=first)
    command = [sys.executable, "-m", "headrace", "rm", first, second]

    unasked = headrace("rm", first)
    answers = {}
    for answer in ("n", "y"):
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            command, stdin=theirs, env=environment, capture_output=True, text=True, timeout=60
        )
        answers[answer] = (done.returncode, done.stdout, done.stderr)
        os.close(ours)
        os.close(theirs)

    assert unasked.returncode == 1
    assert "say --yes if nobody can be asked" in unasked.stderr
    assert answers["n"][0] == 1
    assert "Delete these 2 runs" in answers["n"][2]
    assert answers["n"][1].strip() == ""
    assert answers["y"][0] == 0, answers["y"]
    gone = [line.split()[-1] for line in answers["y"][1].splitlines() if "deleted" in line]
    assert gone == [f"({second})", f"({first})"], "who continues a run goes before it"


def test_without_being_asked_the_deleted_are_listed_as_json(ended: Any, headrace: Headrace) -> None:
    run = ended()

    done = headrace("rm", run[:6], "--yes", "--json")
    again = headrace("rm", run, "--yes", "--json")

    assert json.loads(done.stdout) == {"deleted": [run]}
    assert again.returncode == 1
    assert f"there is no run '{run}'" in json.loads(again.stdout)["error"]


def test_a_name_that_several_runs_have_deletes_none_of_them(
    api: httpx.Client, ended: Any, headrace: Headrace
) -> None:
    first, second = ended(name="namesakes"), ended(name="namesakes")
    sentence = f"2 runs are called 'namesakes': name one by its id: {second} (cancelled, "

    asked = headrace("rm", "namesakes", "--yes")
    sent = api.delete("/v1/runs/namesakes")

    assert asked.returncode == 1
    assert asked.stderr.startswith(f"error: {sentence}")
    assert sent.status_code == 409
    assert sent.json()["detail"].startswith(sentence)
    assert headrace("rm", first, "--yes").returncode == 0
    assert headrace("rm", "namesakes", "--yes").returncode == 0
    assert api.get(f"/v1/runs/{second}").status_code == 404


def test_deletions_before_a_refusal_are_printed_as_json(
    ended: Any, submit: Any, headrace: Headrace
) -> None:
    needed = ended()
    submit({"model": {"path": f"run:{needed}"}}).raise_for_status()
    free = ended()

    done = headrace("rm", needed, free, "--yes", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["error"].endswith(f"; deleted before it: {free}")
