"""Runs over HTTP: what is checked before one is queued, how it is found, followed and ended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.records import RunState, WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore, problems, upload

pytestmark = pytest.mark.usefixtures("sums")


def test_a_submitted_run_is_queued_with_its_whole_config(api: httpx.Client, submit: Any) -> None:
    response = submit({"optimizer": {"lr": 2e-6}}, name="first", priority=3)

    assert response.status_code == 201, response.text
    run = api.get(f"/v1/runs/{response.json()['id']}").json()
    assert (run["name"], run["state"], run["kind"], run["priority"]) == ("first", "queued", "rl", 3)
    assert run["max_steps"] == 200
    assert run["config"]["data"]["dataset"] == api.get("/v1/datasets/sums").json()["id"]
    assert run["config"]["optimizer"]["lr"] == 2e-6
    assert run["config"]["optimizer"]["max_grad_norm"] == 1.0
    assert run["config"]["sampling"]["temperature"] == 1.0


def test_a_config_that_is_probably_a_mistake_is_queued_with_a_warning(
    api: httpx.Client, submit: Any
) -> None:
    run = submit({"algorithm": {"kl": {"type": "k1"}}}).json()

    (warning,) = api.get(f"/v1/runs/{run['id']}").json()["warnings"]
    assert warning.startswith("algorithm.kl.type: the gradient of k1 in the loss is zero")
    assert submit({}).json()["warnings"] == []


def test_an_evaluation_on_trained_rows_gives_a_warning(api: httpx.Client, submit: Any) -> None:
    upload(api, "held-out", b'{"question": "1+1", "answer": "2"}')

    (warning,) = submit({"evaluation": {"dataset": "sums"}}).json()["warnings"]

    assert warning.startswith("evaluation.dataset: sums has rows that the run trains on")
    assert submit({"evaluation": {"dataset": "held-out"}}).json()["warnings"] == []


def test_more_gpus_than_any_worker_has_give_a_warning(submit: Any, in_store: InStore) -> None:
    spread = {"rollout": {"vllm": {"tensor_parallel_size": 4}}}
    alone = submit(spread, pool="gpus").json()["warnings"]

    async def join(store: Store) -> None:
        record = {"pool": "gpus", "host": "h", "pid": 1, "state": "idle"}
        for gpus in (1, 2, None):
            await store.workers.heartbeat(WorkerRecord(id=f"w{gpus}", gpus=gpus, **record))

    in_store(join)

    (warning,) = submit(spread, pool="gpus").json()["warnings"]
    assert warning.startswith(
        "rollout.vllm.tensor_parallel_size: 4 is more than the 2 GPUs that a worker of pool gpus"
    )
    assert alone == submit(pool="gpus").json()["warnings"] == []


@pytest.mark.parametrize("priority", [1001, -1001, 10**400])
def test_a_priority_out_of_bounds_is_refused_and_nothing_is_queued(
    api: httpx.Client, submit: Any, priority: int
) -> None:
    before = api.get("/v1/runs?limit=1000").json()

    response = submit(priority=priority)

    assert "priority" in problems(response)
    assert api.get("/v1/runs?limit=1000").json() == before


def test_numbers_that_json_cannot_carry_are_refused_in_parameters(api: httpx.Client) -> None:
    body = (
        b'{"recipe": "grpo", "config": {"model": {"path": "x/y"}, "data": {"dataset": "sums"}, '
        b'"rewards": [{"verifier": "math", "params": {"timeout": NaN}}]}}'
    )

    response = api.post("/v1/runs", content=body, headers={"content-type": "application/json"})

    assert "NaN" in problems(response)["config.rewards.0.params.timeout"]


def test_steps_follow_from_epochs_rows_and_batch(submit: Any) -> None:
    # 40 rows · 2.5 epochs / 8 prompts = 12.5 steps, of which 12 are whole.
    config = {"training": {"max_steps": None, "epochs": 2.5}, "algorithm": {"prompts_per_step": 8}}

    assert submit(config).json()["max_steps"] == 12


def test_every_problem_is_named_by_its_key_at_once(submit: Any) -> None:
    response = submit(
        {
            "optimizer": {"lrr": 1},
            "data": {"dataset": "sum"},
            "model": {"path": "/nowhere"},
            "algorithm": {"loss": {"type": "pppo"}},
        }
    )

    found = problems(response)
    assert found["optimizer.lrr"] == "unknown key; did you mean 'optimizer.lr'?"
    assert found["data.dataset"] == "there is no dataset 'sum'; did you mean 'sums'?"
    assert found["model.path"].startswith("there is no model at '/nowhere'")
    assert "did you mean 'ppo'?" in found["algorithm.loss"]
    assert response.json()["detail"] == "the run was not queued: its config has 4 problems"


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        ({"algorithm": {"samples_per_prompt": 1}}, "algorithm", "set samples_per_prompt to 2"),
        ({"model": {"path": "run:none"}}, "model.path", "there is no run 'none'"),
        ({"model": {"path": "~nobody-here/m"}}, "model.path", "there is no model at '~nobody-here"),
        (
            {"algorithm": {"critic": {"path": "/nowhere"}, "advantage": {"type": "gae"}}},
            "algorithm.critic.path",
            "there is no model at '/nowhere'",
        ),
        ({"model": {"path": "m" * 5000}}, "model.path", "there is no model at 'mmm"),
        ({"evaluation": {"dataset": "other"}}, "evaluation.dataset", "there is no dataset 'other'"),
        ({"data": {"dataset": 5}}, "data.dataset", "string"),
        (
            {"training": {"max_steps": None}, "algorithm": {"prompts_per_step": 64}},
            "training.epochs",
            "1 epochs over 40 rows make no step of 64 prompts",
        ),
    ],
)
def test_a_run_that_cannot_work_is_not_queued(
    submit: Any, config: dict[str, Any], path: str, said: str
) -> None:
    assert said in problems(submit(config))[path]


def test_a_folder_without_a_model_in_it_is_refused(submit: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    said = problems(submit({"model": {"path": str(empty)}}))["model.path"]

    assert "holds no config.json" in said


def test_a_supervised_run_on_rows_without_answers_is_refused(api: httpx.Client) -> None:
    upload(api, "no-answers", b'{"prompt": "a"}')
    config = {"type": "sft", "model": {"source": "scratch"}, "data": {"dataset": "no-answers"}}

    found = problems(api.post("/v1/runs", json={"config": config}))

    assert "have no answers to imitate" in found["data.dataset"]


def test_every_dataset_of_a_mixture_is_looked_for_and_cannot_be_deleted_meanwhile(
    api: httpx.Client,
) -> None:
    upload(api, "no-answers", b'{"prompt": "a"}')
    more = upload(api, "more", b'{"prompt": "1+1", "answer": "2"}').json()
    base = {"type": "sft", "model": {"source": "scratch"}}

    mix = [{"dataset": "summs"}, {"dataset": "no-answers"}]
    refused = api.post(
        "/v1/runs", json={"config": base | {"data": {"dataset": "sums", "mix": mix}}}
    )
    mix = [{"dataset": "more"}]
    queued = api.post("/v1/runs", json={"config": base | {"data": {"dataset": "sums", "mix": mix}}})

    found = problems(refused)
    assert found["data.mix.0.dataset"] == "there is no dataset 'summs'; did you mean 'sums'?"
    assert "have no answers to imitate" in found["data.mix.1.dataset"]
    assert queued.json()["config"]["data"]["mix"][0]["dataset"] == more["id"]
    assert api.delete("/v1/datasets/more").status_code == 409
    api.post(f"/v1/runs/{queued.json()['id']}/cancel")
    assert api.delete("/v1/datasets/more").status_code == 204


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "nothing was submitted"),
        ({"recipe": "grop"}, 404, "did you mean 'grpo'?"),
        ({"recipe": "grpo", "resume_from": "none"}, 404, "there is no run 'none'"),
        ({"recipe": "grpo", "prio": 1}, 422, "prio"),
        ({"recipe": "grpo", "pool": "No Spaces"}, 422, "pool"),
    ],
)
def test_a_submission_without_recipe_and_config_or_with_unknown_ones_is_refused(
    api: httpx.Client, body: dict[str, Any], status: int, said: str
) -> None:
    response = api.post("/v1/runs", json=body)

    assert response.status_code == status
    assert said in response.text


def test_a_body_that_is_not_json_is_refused(api: httpx.Client) -> None:
    broken = api.post(
        "/v1/runs", content=b'{"recipe": ', headers={"Content-Type": "application/json"}
    )
    untyped = api.post("/v1/runs", content=b"{}", headers={"Content-Type": "text/plain"})

    assert broken.status_code == 400
    assert "the body is not JSON" in broken.json()["detail"]
    assert untyped.status_code == 415
    assert "Content-Type: application/json" in untyped.json()["detail"]


def test_a_run_is_found_by_id_by_name_and_by_the_beginning_of_its_id(
    api: httpx.Client, submit: Any
) -> None:
    older = submit(name="twice").json()["id"]
    newer = submit(name="twice").json()["id"]

    assert api.get(f"/v1/runs/{older}").json()["id"] == older
    assert api.get(f"/v1/runs/{older[:-1]}").json()["id"] == older
    assert api.get("/v1/runs/twice").json()["id"] == newer
    missing = api.get("/v1/runs/twic e")
    assert missing.status_code == 404
    assert "did you mean 'twice'?" in missing.json()["detail"]


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
    second = api.get("/v1/runs", params={"name": "paged", "before": first["next"]}).json()

    assert [run["id"] for run in first["runs"] + second["runs"]] == ids[::-1]
    assert second["next"] is None
    assert first["runs"][0].keys().isdisjoint({"config", "warnings", "metrics"})
    assert all(len(json.dumps(run)) < 800 for run in first["runs"])
    for wrong in ("nonsense", "1.2.3-x", "1.5-x-y", "1e+5e-x", "-x"):
        refused = api.get("/v1/runs", params={"before": wrong})
        assert refused.status_code == 422, wrong
        assert "query.before" in refused.text, wrong
    assert api.get("/v1/runs?limit=0").status_code == 422


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
    asked = api.post(f"/v1/runs/{run}/cancel").json()
    listed = api.get("/v1/runs?state=cancelling").json()["runs"]
    in_store(lambda store: store.runs.finish(run, "slow", "cancelled", "on request"))

    assert (asked["state"], asked["reason"]) == ("cancelling", "it ends after its present step")
    assert [one["id"] for one in listed] == [run]
    states = [event["data"]["state"] for _, event in events_of(api, run)]
    assert states == ["running", "cancelling", "cancelled"]


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


def test_metrics_are_what_the_learner_wrote_after_a_step(
    api: httpx.Client, submit: Any, gateway: GatewayProcess
) -> None:
    run = submit().json()["id"]
    assert api.get(f"/v1/runs/{run}/metrics").json() == {"run": run, "metrics": [], "next": None}
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": n, "reward/mean": n / 10} for n in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"step": 4, "rew')

    assert api.get(f"/v1/runs/{run}/metrics").json()["metrics"] == rows
    assert api.get(f"/v1/runs/{run}/metrics?after=2").json()["metrics"] == rows[2:]
    first = api.get(f"/v1/runs/{run}/metrics?limit=2").json()
    rest = api.get(f"/v1/runs/{run}/metrics?start={first['next']}").json()
    assert (first["metrics"], rest["metrics"], rest["next"]) == (rows[:2], rows[2:], None)
    assert api.get(f"/v1/runs/{run}/metrics?limit=100000").status_code == 422


def test_one_metric_is_sent_without_the_others(
    api: httpx.Client, submit: Any, gateway: GatewayProcess
) -> None:
    run = submit().json()["id"]
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": 1, "a": 1, "b": 2}, {"evaluation/step": 1, "c": 3}, {"step": 2, "b": 4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    found = api.get(f"/v1/runs/{run}/metrics?name=a&name=c").json()["metrics"]

    assert found == [{"step": 1, "a": 1}, {"evaluation/step": 1, "c": 3}]


def events_of(
    api: httpx.Client, run: str, after: str | None = None, **query: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, event) until the stream ends."""
    headers = {"Last-Event-ID": after} if after else {}
    with api.stream("GET", f"/v1/runs/{run}/events", headers=headers, params=query) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


def test_events_come_in_order_resume_after_the_last_one_and_end_with_the_run(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]

    async def train(store: Store) -> None:
        for step in (1, 2, 3):
            await store.events.add(run, "step", {"step": step, "reward/mean": 0.5})

    in_store(train)
    in_store(lambda store: store.runs.set_state(run, RunState.SUCCEEDED, "3 steps"))

    seen = list(events_of(api, run))
    steps = [(kind, event["data"]["step"]) for kind, event in seen if kind == "step"]
    second = next(event["id"] for _, event in seen if event["data"].get("step") == 2)
    rest = [event["data"] for _, event in events_of(api, run, after=second)]

    assert steps == [("step", 1), ("step", 2), ("step", 3)]
    assert seen[-1][1]["data"] == {"state": "succeeded", "reason": "3 steps"}
    assert rest == [{"step": 3, "reward/mean": 0.5}, {"state": "succeeded", "reason": "3 steps"}]


def test_a_follower_may_begin_with_the_newest_events(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]

    async def train(store: Store) -> None:
        for step in range(1, 6):
            await store.events.add(run, "step", {"step": step})
        await store.runs.set_state(run, RunState.SUCCEEDED, "")

    in_store(train)

    for newest, steps in ((0, []), (3, [4, 5]), (9, [1, 2, 3, 4, 5])):
        seen = events_of(api, run, newest=newest)
        assert [event["data"]["step"] for kind, event in seen if kind == "step"] == steps


def test_a_follower_sees_what_happens_while_it_follows(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]
    in_store(lambda store: store.events.add(run, "step", {"step": 1}))
    stream = events_of(api, run)
    seen = [next(stream)]
    while seen[-1][0] != "step":
        seen.append(next(stream))

    in_store(lambda store: store.events.add(run, "warning", {"message": "all rewards are zero"}))
    assert next(stream)[1]["data"] == {"message": "all rewards are zero"}
    api.post(f"/v1/runs/{run}/cancel")
    assert [event["data"]["state"] for _, event in stream] == ["cancelled"]


def test_events_of_an_unknown_run_or_after_nonsense_are_refused(
    api: httpx.Client, submit: Any
) -> None:
    run = submit().json()["id"]

    assert api.get("/v1/runs/none/events").status_code == 404
    nonsense = api.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": "x"})
    assert nonsense.status_code == 422
