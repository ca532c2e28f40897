"""Chains: all steps are checked at once, each is submitted once, and every end has its reason."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from services.contracts.chains import ChainRecord
from services.recovery.record_copies import forget_dataset
from services.store import Store
from services.store.keys import CHAINS, OPEN_CHAINS, RUNS, pool_key
from tests.integration.gateway.servers import (
    GatewayProcess,
    Headrace,
    InStore,
    RedisServer,
    problems,
    upload,
)
from tests.integration.gateway.test_continuing import write_checkpoint
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.usefixtures("sums")

SFT: dict[str, Any] = {"name": "sft", "recipe": "demo_sft", "config": {"data": {"dataset": "sums"}}}
RL: dict[str, Any] = {
    "name": "rl",
    "recipe": "demo_grpo",
    "config": {"data": {"dataset": "sums"}, "evaluation": None},
}


@pytest.fixture
def chain(api: httpx.Client) -> Iterator[Any]:
    """Submits a chain. All are cancelled afterwards."""
    ids: list[str] = []

    def send(*steps: dict[str, Any], **request: Any) -> httpx.Response:
        given = {"name": "sums", "pool": "chained", "steps": list(steps or (SFT, RL)), **request}
        response = api.post("/v1/chains", json=given)
        if response.status_code == 201:
            ids.append(response.json()["id"])
        return response

    yield send
    for id in ids:
        api.post(f"/v1/chains/{id}/cancel")


@pytest.fixture
def ends(in_store: InStore) -> Any:
    """Plays the learner: takes the pool's next run and ends it, with a checkpoint of step 5 if it
    trains."""

    def end(state: str, reason: str = "", pool: str = "chained", trains: bool = True) -> str:
        taken: list[str] = []

        async def play(store: Store) -> None:
            async with asyncio.timeout(60):
                # A run's record says `queued` a moment before the run is in the queue.
                while (run := await store.runs.take(pool)) is None or run.state.final:
                    if run is None:
                        await asyncio.sleep(0.02)
                    else:
                        # A gateway that read the run before it ended has queued it again.
                        await store.runs.finish(run.id, pool, run.state, run.reason)
            token = await store.runs.acquire(run.id, "9f3a1c")
            folder = f"runs/{run.id}/checkpoints/step-000005"
            fields = {"checkpoint": folder, "committed_step": 5, "step": 5}
            await store.runs.update(run.id, token, fields if trains else {})
            await store.runs.finish(run.id, pool, state, reason)
            taken.append(run.id)

        in_store(play)
        return taken[0]

    return end


def steps_of(api: httpx.Client, id: str) -> list[tuple[str, str]]:
    return [(s["name"], s["state"]) for s in api.get(f"/v1/chains/{id}").json()["steps"]]


def test_each_step_starts_from_the_one_before_and_a_failed_one_is_resumed(
    api: httpx.Client, chain: Any, ends: Any, headrace: Headrace
) -> None:
    made = chain().json()
    id = made["id"]
    assert steps_of(api, id) == [("sft", "queued"), ("rl", "waiting")]
    assert made["steps"][1]["run"] is None

    first = ends("succeeded")
    eventually(lambda: steps_of(api, id) == [("sft", "succeeded"), ("rl", "queued")])
    second = api.get(f"/v1/chains/{id}").json()["steps"][1]["run"]
    run = api.get(f"/v1/runs/{second}").json()
    assert run["config"]["model"]["path"] == f"run:{first}@5"
    assert (run["chain"], run["recipe"], run["name"]) == (id, "demo_grpo", "sums-rl")
    # While the chain goes on, nobody deletes what it needs.
    kept = api.delete(f"/v1/runs/{first}")
    assert kept.status_code == 409
    assert "is needed by the chain sums" in kept.json()["detail"]
    assert "chain-" in api.delete("/v1/datasets/sums").json()["detail"]
    early = api.post(f"/v1/chains/{id}/resume", json={})
    assert early.status_code == 409
    assert "is running: only one that has failed" in early.json()["detail"]
    assert api.delete(f"/v1/chains/{id}").status_code == 409

    ends("failed", "the verifier is broken")
    eventually(lambda: api.get(f"/v1/chains/{id}").json()["state"] == "failed")
    assert api.get(f"/v1/chains/{id}").json()["reason"] == "step rl: the verifier is broken"
    shown = headrace("why", id)
    assert "step rl: the verifier is broken" in shown.stdout

    wrong = api.post(f"/v1/chains/{id}/resume", json={"config": {"training": {"max_stepz": 9}}})
    assert "training.max_stepz" in problems(wrong)
    assert headrace("resume", id, "--set", "training.max_steps=9").returncode == 0
    third = api.get(f"/v1/chains/{id}").json()["steps"][1]
    assert third["runs"] == [second, third["run"]]
    assert third["max_steps"] == 9
    assert api.get(f"/v1/runs/{third['run']}").json()["resume_from"] == second

    assert ends("succeeded") == third["run"]
    assert headrace("watch", id).returncode == 0
    # Of a chain these show the last run.
    for command in ("metrics", "evaluations", "checkpoints", "rollouts"):
        shown = headrace(command, id)
        assert (shown.returncode, "no " in shown.stdout) == (0, True), (command, shown)
    assert third["run"] in headrace("chat", id, "2+2=").stderr
    over = api.get(f"/v1/chains/{id}").json()
    assert (over["state"], over["reason"]) == ("succeeded", "")
    assert "sums" in headrace("chains").stdout
    assert headrace("audit", id).returncode == 0

    assert headrace("rm", id, "--yes").returncode == 0
    assert api.get(f"/v1/chains/{id}").status_code == 404
    assert all(api.get(f"/v1/runs/{r}").status_code == 404 for r in (first, *third["runs"]))


def test_a_step_goes_on_from_its_own_checkpoint_though_the_run_before_it_is_deleted(
    api: httpx.Client, chain: Any, ends: Any, gateway: GatewayProcess
) -> None:
    id = chain().json()["id"]
    first = ends("succeeded")
    eventually(lambda: steps_of(api, id) == [("sft", "succeeded"), ("rl", "queued")])
    second = ends("failed", "the verifier is broken")
    checkpoint = gateway.data / f"runs/{second}/checkpoints/step-000005"
    write_checkpoint(checkpoint)
    (checkpoint / "tokenizer_config.json").write_text("{}")
    eventually(lambda: api.get(f"/v1/chains/{id}").json()["state"] == "failed")
    assert api.delete(f"/v1/runs/{first}").status_code == 204

    # The reference of a KL would be the deleted model.
    needs = {"algorithm": {"kl": {"type": "k3", "coefficient": 0.1}}}
    refused = api.post(f"/v1/chains/{id}/resume", json={"config": needs})
    assert f"there is no run '{first}" in problems(refused)["model.path"]
    resumed = api.post(f"/v1/chains/{id}/resume", json={})
    assert resumed.status_code == 201, resumed.text
    third = api.get(f"/v1/runs/{resumed.json()['steps'][1]['run']}").json()
    assert (third["resume_from"], third["config"]["model"]["path"]) == (second, f"run:{first}@5")

    # A step without a checkpoint has nothing to go on from.
    ends("failed", "again")
    eventually(lambda: api.get(f"/v1/chains/{id}").json()["state"] == "failed")
    for run in (third["id"], second):
        assert api.delete(f"/v1/runs/{run}").status_code == 204
    refused = api.post(f"/v1/chains/{id}/resume", json={})
    assert refused.status_code == 409
    assert "the run of step sft is deleted, and step rl has no" in refused.json()["detail"]


def test_a_step_that_evaluates_goes_on_from_its_answers_unless_its_options_change(
    api: httpx.Client, chain: Any, ends: Any, model: Path
) -> None:
    options = {
        "type": "rl",
        "model": {"path": str(model)},
        "data": {"dataset": "sums"},
        "rewards": [{"verifier": "math"}],
        "training": {"max_steps": 0},
        "evaluation": {"dataset": "sums"},
    }
    id = chain({"name": "eval", "config": options}).json()["id"]

    def resumed(**config: Any) -> tuple[str, str | None]:
        """A run of the step fails, and the chain is resumed: the failed run, and what the next one
        continues."""
        failed = ends("failed", "no worker", trains=False)
        eventually(lambda: api.get(f"/v1/chains/{id}").json()["state"] == "failed")
        assert api.post(f"/v1/chains/{id}/resume", json={"config": config}).status_code == 201
        eventually(lambda: steps_of(api, id) == [("eval", "queued")])
        run = api.get(f"/v1/chains/{id}").json()["steps"][0]["run"]
        return failed, api.get(f"/v1/runs/{run}").json()["resume_from"]

    failed, before = resumed()
    assert before == failed
    assert resumed(evaluation={"samples": 2})[1] is None


def test_pages_go_on_where_the_last_chain_of_a_page_was_deleted(
    api: httpx.Client, chain: Any
) -> None:
    oldest, deleted, newest = (chain(name=f"page-{n}").json()["id"] for n in range(3))
    first = api.get("/v1/chains", params={"limit": 2}).json()
    assert [one["id"] for one in first["chains"]] == [newest, deleted]
    api.post(f"/v1/chains/{deleted}/cancel")
    eventually(lambda: api.delete(f"/v1/chains/{deleted}").status_code == 204)
    second = api.get("/v1/chains", params={"limit": 1, "cursor": first["next"]}).json()
    assert [one["id"] for one in second["chains"]] == [oldest]
    assert api.get("/v1/chains", params={"cursor": "no cursor"}).status_code == 422


def test_a_cancelled_chain_begins_no_further_step(
    api: httpx.Client, chain: Any, headrace: Headrace
) -> None:
    id = chain().json()["id"]
    assert headrace("cancel", id).returncode == 0
    shown = api.get(f"/v1/chains/{id}").json()
    assert (shown["state"], shown["reason"]) == (
        "cancelled",
        "step sft: on request, after it ended",
    )
    assert steps_of(api, id) == [("sft", "cancelled"), ("rl", "waiting")]
    again = api.post(f"/v1/chains/{id}/cancel")
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")
    # A cancelled run also ends its chain.
    other = chain().json()
    api.post(f"/v1/runs/{other['steps'][0]['run']}/cancel")
    eventually(lambda: api.get(f"/v1/chains/{other['id']}").json()["state"] == "cancelled")


def test_a_refusal_names_step_and_key_and_queues_nothing(
    api: httpx.Client, chain: Any, redis_server: RedisServer
) -> None:
    def changed(step: dict[str, Any], **config: Any) -> dict[str, Any]:
        return {**step, "config": {**step["config"], **config}}

    before = Redis.from_url(redis_server.url).zcard(RUNS)
    # The model of the first step has 64 positions.
    long = changed(RL, rollout={"vllm": {"max_model_len": 65}})
    mistyped = changed(SFT, training={"max_stepz": 3})
    refusals = problems(chain(mistyped, long, {**RL, "name": "again", "recipe": "demo_grpoo"}))
    assert set(refusals) == {"steps.sft.training.max_stepz", "steps.again"}
    assert "demo_grpo" in refusals["steps.again"]
    refusals = problems(chain(SFT, long))
    assert list(refusals) == ["steps.rl.rollout.vllm.max_model_len"]
    assert "64 positions" in refusals["steps.rl.rollout.vllm.max_model_len"]
    later = changed(RL, model={"path": "step:rl"})
    assert (
        "names no earlier step; there is sft" in problems(chain(SFT, later))["steps.rl.model.path"]
    )
    last = changed(RL, model={"path": "step:sft@last"})
    assert "or by @ and the number" in problems(chain(SFT, last))["steps.rl.model.path"]
    alone = changed(RL, model={"path": "step:sft@best"})
    blind = changed(SFT, validation={"share": 0})
    assert "no validation" in problems(chain(blind, alone))["steps.rl.model.path"]
    late = changed(RL, model={"path": "step:sft@6"})
    short = changed(SFT, training={"max_steps": 5})
    assert "step sft trains 5 steps" in problems(chain(short, late))["steps.rl.model.path"]
    assert "two steps are called 'sft'" in chain(SFT, SFT).json()["detail"]
    assert chain(pool="Not a pool").status_code == 422
    submission = {"recipe": "demo_grpo", "config": {"model": {"path": "step:sft"}}}
    assert (
        "submit both in one chain" in problems(api.post("/v1/runs", json=submission))["model.path"]
    )
    submission["config"] = {"model": {"path": "run:none@best"}}
    refused = problems(api.post("/v1/runs", json=submission))["model.path"]
    assert "there is no run 'none@best'" in refused
    assert refused.endswith("after @ comes the number of a step: run:RUN@20")
    assert api.get("/v1/chains/chain-none").status_code == 404
    assert Redis.from_url(redis_server.url).zcard(RUNS) == before


def test_a_dry_run_of_a_chain_says_what_each_step_needs_and_queues_nothing(
    api: httpx.Client, chain: Any, headrace: Headrace, redis_server: RedisServer, tmp_path: Path
) -> None:
    redis = Redis.from_url(redis_server.url)
    before = redis.zcard(RUNS), redis.hlen(CHAINS)
    body = {"name": "sums", "steps": [SFT, RL]}
    answer = api.post("/v1/chains?dry_run=true", json=body)
    assert answer.status_code == 200, answer.text
    sft, rl = answer.json()["steps"]
    assert (sft["name"], sft["config"]["type"], sft["refusals"]) == ("sft", "sft", [])
    assert rl["config"]["model"]["path"] == "step:sft"
    # The estimate is for the model that the first step will have made.
    assert rl["estimate"]["rollout"]["needed"] > 0
    wrong = {**body, "steps": [{**SFT, "recipe": "demo_stf"}]}
    assert "steps.sft" in problems(api.post("/v1/chains?dry_run=true", json=wrong))

    file = tmp_path / "sums.yaml"
    file.write_text(json.dumps({"steps": body["steps"]}))
    done = headrace("submit", str(file), "--dry-run", "--set", "rl.training.max_steps=7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("step sft") < done.stdout.index("step rl")
    assert "7 steps" in done.stdout
    assert (redis.zcard(RUNS), redis.hlen(CHAINS)) == before


def test_a_chain_ends_where_its_next_step_cannot_be_submitted(
    api: httpx.Client, chain: Any, ends: Any, in_store: InStore, gateway: GatewayProcess
) -> None:
    upload(api, "gone", b'{"question": "1+1", "answer": "2"}\n' * 40)
    rl = {**RL, "config": {**RL["config"], "data": {"dataset": "gone"}}}
    id = chain(SFT, rl).json()["id"]

    async def lose(store: Store) -> None:
        dataset = await store.datasets.find("gone")
        assert dataset is not None
        forget_dataset(gateway.data, dataset.id)
        await store.datasets.delete(dataset.id)

    in_store(lose)
    ends("succeeded")
    eventually(lambda: api.get(f"/v1/chains/{id}").json()["state"] == "failed")
    assert (
        "step rl: data.dataset: there is no dataset" in api.get(f"/v1/chains/{id}").json()["reason"]
    )


def test_a_step_without_improvement_reports_that_it_has_no_best_checkpoint(
    chain: Any, ends: Any, api: httpx.Client, gateway: GatewayProcess
) -> None:
    best = {**RL, "config": {**RL["config"], "model": {"path": "step:sft@best"}}}
    made = chain(SFT, best).json()
    folder = gateway.data / "runs" / made["steps"][0]["run"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text('{"step": 5, "validation/best_step": 0.0}\n')
    ends("succeeded")
    eventually(lambda: api.get(f"/v1/chains/{made['id']}").json()["state"] == "failed")
    reason = api.get(f"/v1/chains/{made['id']}").json()["reason"]
    assert "training has not improved the model" in reason
    assert "keep_checkpoints" not in reason


# --- kills between steps --------------------------------------------------------------------------


def test_a_gateway_that_dies_at_any_moment_between_steps_submits_each_step_once(
    tmp_path: Path, redis_server: RedisServer, chain: Any, ends: Any, api: httpx.Client
) -> None:
    """The moments are made, not met: what stands in Redis after each is written there."""
    redis = Redis.from_url(redis_server.url)

    def chains() -> dict[str, ChainRecord]:
        texts = redis.hgetall(CHAINS)
        return {i.decode(): ChainRecord.model_validate_json(t) for i, t in texts.items()}  # type: ignore[union-attr]

    id = chain().json()["id"]
    record = chains()[id]
    run, queue = record.step.run, pool_key("chained", "queue")
    # After the chain was written, before its run was.
    redis.delete(queue, *redis.keys(f"headrace:{{{run}}}:*"))
    redis.zrem(RUNS, run)
    eventually(lambda: redis.zscore(queue, run) is not None)
    # After the run was written, before it was listed and queued.
    redis.delete(queue)
    redis.zrem(RUNS, run)
    eventually(lambda: redis.zscore(queue, run) is not None and redis.zscore(RUNS, run) is not None)
    # After the run was queued: two gateways submit nothing more.
    other = GatewayProcess(tmp_path / "data", redis_server.url)
    try:
        assert ends("succeeded") == run
        eventually(lambda: steps_of(api, id)[1] == ("rl", "queued"))
        second = chains()[id].step.run
        # Killed after the run had succeeded, before the chain knew: the chain is as it was before.
        redis.hset(CHAINS, id, chains()[id].model_copy(update={"at": 0}).model_dump_json())
        eventually(lambda: chains()[id].at == 1)
        eventually(lambda: redis.zrange(queue, 0, -1) == [second.encode()])
        assert ends("succeeded") == second
        eventually(lambda: chains()[id].state == "succeeded")
        eventually(lambda: id.encode() not in redis.smembers(OPEN_CHAINS))
        runs = [r for r in api.get("/v1/runs?limit=1000").json()["runs"] if r["chain"] == id]
        assert [(r["id"], r["state"]) for r in runs] == [(second, "succeeded"), (run, "succeeded")]
    finally:
        other.stop(signal.SIGKILL)
