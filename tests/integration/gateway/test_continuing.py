"""Runs that go on from others: what may be resumed, what stays, what a run can start from."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from services.store import Store
from services.volume import checksum
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore, problems

pytestmark = pytest.mark.usefixtures("sums")


def test_a_run_that_is_not_over_cannot_be_resumed(api: httpx.Client, submit: Any) -> None:
    live = api.post("/v1/runs", json={"resume_from": submit().json()["id"]})

    assert live.status_code == 409
    assert "is queued: cancel it before it is resumed" in live.json()["detail"]


def test_a_run_that_failed_before_its_first_checkpoint_is_run_again_with_a_key_changed(
    submit: Any, in_store: InStore, headrace: Headrace, api: httpx.Client
) -> None:
    run = submit(config={"training": {"seed": 7}}).json()
    in_store(lambda store: store.runs.fail(run["id"], "too little to learn from"))

    said = headrace("resume", run["id"], "--set", "algorithm.prompts_per_step=1")

    assert said.returncode == 0, said.stderr
    warning = f"run {run['name']} ({run['id']}) ended without a checkpoint: this run has its config"
    assert warning in " ".join(said.stdout.split())
    newest = api.get("/v1/runs", params={"name": run["name"]}).json()["runs"][0]
    again = api.get(f"/v1/runs/{newest['id']}").json()
    api.post(f"/v1/runs/{again['id']}/cancel")
    assert again["id"] != run["id"]
    # A key that a checkpoint would have kept.
    assert again["config"]["algorithm"]["prompts_per_step"] == 1
    assert again["config"]["training"]["seed"] == 7
    assert (again["resume_from"], again["recipe"], again["pool"]) == (
        None,
        run["recipe"],
        run["pool"],
    )


def test_an_evaluation_of_a_model_is_resumed_with_the_same_options(
    api: httpx.Client, model: Path
) -> None:
    asked = {"model": str(model), "dataset": "sums", "verifier": "math"}
    run = api.post("/v1/evaluations", json=asked).json()["run"]["id"]
    api.post(f"/v1/runs/{run}/cancel")

    other = {
        "evaluation": {"samples": 2},
        "training": {"max_steps": 1},
        "model": {"dtype": "float32"},
    }
    refused = problems(api.post("/v1/runs", json={"resume_from": run, "config": other}))
    resumed = api.post("/v1/runs", json={"resume_from": run})

    assert set(refused) == {"evaluation", "training.max_steps", "model.dtype"}
    assert "the answers that it has depend on: leave it, or evaluate anew" in refused["evaluation"]
    assert resumed.status_code == 201, resumed.text
    again = api.get(f"/v1/evaluations/{resumed.json()['id']}").json()["run"]
    assert (again["resume_from"], again["max_steps"]) == (run, 0)
    api.post(f"/v1/runs/{again['id']}/cancel")


def checkpointed(in_store: InStore, run: str) -> None:
    """Have `run` a checkpoint of step 5."""
    folder = f"runs/{run}/checkpoints/step-000005"

    async def train(store: Store) -> None:
        fencing_token = await store.runs.acquire(run, "9f3a1c")
        await store.runs.update(run, fencing_token, {"checkpoint": folder, "committed_step": 5})

    in_store(train)


def write_checkpoint(folder: Path) -> Path:
    """Write a checkpoint of one file, and return the file."""
    (folder / "training").mkdir(parents=True)
    file = folder / "training/state.json"
    file.write_text("{}")
    listed = {"bytes": 2, "xxh3": checksum(file)}
    (folder / "manifest.json").write_text(json.dumps({"files": {"training/state.json": listed}}))
    return file


def test_a_run_is_resumed_from_a_step_and_from_the_newest_checkpoint_that_is_whole(
    api: httpx.Client,
    submit: Any,
    in_store: InStore,
    gateway: GatewayProcess,
    headrace: Headrace,
) -> None:
    run = submit().json()["id"]
    names = [f"runs/{run}/checkpoints/step-{step:06d}-9f3a1c" for step in (1, 3, 5)]
    files = [write_checkpoint(gateway.data / name) for name in names]

    async def train(store: Store) -> None:
        fencing_token = await store.runs.acquire(run, "9f3a1c")
        await store.runs.update(run, fencing_token, {"checkpoint": names[2], "committed_step": 5})

    def resumed(reference: str) -> tuple[dict[str, Any], list[str]]:
        response = api.post("/v1/runs", json={"resume_from": reference})
        assert response.status_code == 201, response.text
        record = api.get(f"/v1/runs/{response.json()['id']}").json()
        at = ("checkpoint", "committed_step", "resume_from", "resume_step")
        assert [response.json()[key] for key in at] == [record[key] for key in at]
        api.post(f"/v1/runs/{record['id']}/cancel")
        return record, [said for said in record["warnings"] if "checkpoint" in said]

    in_store(train)
    api.post(f"/v1/runs/{run}/cancel")
    last, nothing = resumed(run)
    assert (last["checkpoint"], last["committed_step"], nothing) == (names[2], 5, [])
    named, nothing = resumed(f"{run}@3")
    assert (named["checkpoint"], named["committed_step"], nothing) == (names[1], 3, [])
    assert (named["step"], named["resume_from"], named["resume_step"]) == (3, run, 3)
    said = headrace("resume", f"{run}@3")
    assert f"it continues run {run} from step 3" in said.stdout
    api.post(f"/v1/runs/{said.stdout.split(' as ')[1].split()[0]}/cancel")
    gone = api.post("/v1/runs", json={"resume_from": f"{run}@4"})
    assert (gone.status_code, "it has those of 1, 3, 5" in gone.json()["detail"]) == (409, True)

    files[2].write_text("{]")
    back, (warning,) = resumed(run)
    assert (back["checkpoint"], back["version"]) == (names[1], 3)
    assert warning.startswith("checkpoint step-000005-9f3a1c is damaged: training/state.json has")
    assert "the run goes on from step 3, whose checkpoint is whole" in warning
    meant = api.post("/v1/runs", json={"resume_from": f"{run}@5"})
    assert meant.json()["detail"].endswith(f"earlier ones that are whole: {run}@3, {run}@1")
    files[1].unlink()
    (gateway.data / names[0] / "manifest.json").write_text("[")
    refused = api.post("/v1/runs", json={"resume_from": run})
    assert refused.status_code == 409
    assert refused.json()["detail"].endswith("earlier ones that are whole: none")


def test_a_run_that_trains_is_forked_from_a_kept_checkpoint(
    api: httpx.Client,
    submit: Any,
    in_store: InStore,
    gateway: GatewayProcess,
    headrace: Headrace,
) -> None:
    run = submit().json()
    names = [f"runs/{run['id']}/checkpoints/step-{step:06d}-9f3a1c" for step in (1, 3, 5)]
    path = f"/v1/runs/{run['id']}"
    early = api.post(f"{path}/fork", json={})
    assert (early.status_code, "has no checkpoint" in early.json()["detail"]) == (409, True)
    for name in names:
        write_checkpoint(gateway.data / name)

    async def train(store: Store) -> None:
        token = await store.runs.acquire(run["id"], "9f3a1c")
        fields = {"checkpoint": names[2], "committed_step": 5, "step": 6}
        await store.runs.update(run["id"], token, fields)
        await store.runs.set_state(run["id"], "running", "")

    in_store(train)
    missing = api.post(f"{path}/fork", json={"step": 4})
    assert (missing.status_code, "it has those of 1, 3, 5" in missing.json()["detail"]) == (
        409,
        True,
    )
    seed = api.post(f"{path}/fork", json={"config": {"training": {"seed": 7}}})
    assert set(problems(seed)) == {"training.seed"}
    assert not list(gateway.data.glob(f"runs/{run['id']}/checkpoints/pinned-*"))

    body = {"step": 3, "config": {"optimizer": {"lr": 3e-7}}, "tags": ["lower"]}
    tried = api.post(f"{path}/fork?dry_run=true", json=body)
    assert (tried.status_code, tried.json()["config"]["optimizer"]["lr"]) == (200, 3e-7)
    key = {"Idempotency-Key": "fork-once"}
    made = api.post(f"{path}/fork", json=body, headers=key)
    assert made.status_code == 201, made.text
    fork = made.json()
    assert api.post(f"{path}/fork", json=body, headers=key).json()["id"] == fork["id"]
    at = ("name", "is_fork", "resume_from", "resume_step", "checkpoint", "step", "version")
    wanted = (f"{run['name']}-fork", True, run["id"], 3, names[1], 3, 3)
    assert tuple(fork[each] for each in at) == wanted
    assert (fork["tags"], fork["config"]["optimizer"]["lr"]) == (["lower"], 3e-7)
    still = api.get(path).json()
    assert (still["state"], still["committed_step"], still["is_fork"]) == ("running", 5, False)

    pinned = api.get(f"{path}/checkpoints").json()["checkpoints"]
    assert [each["step"] for each in pinned if each["pinned"]] == [3]
    needed = api.post(f"{path}/checkpoints/3/unpin")
    assert (needed.status_code, fork["id"] in needed.json()["detail"]) == (409, True)
    said = headrace("fork", run["id"], "--set", "optimizer.lr=1e-7", "--name", "lowest")
    assert f"it was forked from run {run['id']} at step 5" in said.stdout, said.stderr
    for forked in (fork["id"], "lowest"):
        api.post(f"/v1/runs/{forked}/cancel")
    in_store(lambda store: store.runs.fail(run["id"], "for the test"))
    kept = api.delete(path)
    assert (kept.status_code, "continues it" in kept.json()["detail"]) == (409, True)
    assert api.post(f"{path}/checkpoints/3/unpin").status_code == 200


def test_a_resumed_run_cannot_change_what_its_checkpoint_depends_on(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]
    checkpointed(in_store, run)
    api.post(f"/v1/runs/{run}/cancel")
    changes = {
        "training": {"seed": 7},
        "algorithm": {"prompts_per_step": 2},
        "optimizer": {"type": "muon"},
    }
    valued = {"advantage": {"type": "gae"}, "critic": {}}

    refused = problems(api.post("/v1/runs", json={"resume_from": run, "config": changes}))

    assert set(refused) == {"training.seed", "algorithm.prompts_per_step", "optimizer.type"}
    assert "is 7, but the run that is resumed has 0" in refused["training.seed"]
    added = problems(
        api.post("/v1/runs", json={"resume_from": run, "config": {"algorithm": valued}})
    )
    assert set(added) == {"algorithm.critic.optimizer.type"}
    thin = {"model": {"lora": {"rank": 8}}}
    thinned = problems(api.post("/v1/runs", json={"resume_from": run, "config": thin}))
    assert set(thinned) == {"model.lora"}
    assert "but the run that is resumed has None" in thinned["model.lora"]
    senseless = api.post("/v1/runs", json={"resume_from": run, "config": {"training": "x"}})
    assert "training" in problems(senseless)


def test_a_run_is_resumed_though_what_it_started_from_is_gone_unless_that_is_its_reference(
    api: httpx.Client, submit: Any, in_store: InStore, gateway: GatewayProcess, model: Path
) -> None:
    def with_checkpoint(path: str) -> str:
        run: str = submit({"model": {"path": path}}).json()["id"]
        checkpointed(in_store, run)
        api.post(f"/v1/runs/{run}/cancel")
        folder = gateway.data / f"runs/{run}/checkpoints/step-000005"
        shutil.copytree(model, folder)
        (folder / "manifest.json").write_text('{"files": {}}')
        return run

    source = with_checkpoint(str(model))
    run = with_checkpoint(f"run:{source}")
    assert api.delete(f"/v1/runs/{source}").status_code == 204
    compared = {"algorithm": {"kl": {"type": "k3", "beta": 0.1}}}

    resumed = api.post("/v1/runs", json={"resume_from": run})
    refused = problems(api.post("/v1/runs", json={"resume_from": run, "config": compared}))
    other = {"model": {"path": "run:ffffffff"}}
    unknown = problems(api.post("/v1/runs", json={"resume_from": run, "config": other}))

    assert resumed.status_code == 201, resumed.text
    assert resumed.json()["config"]["model"]["path"] == f"run:{source}"
    assert (set(refused), set(unknown)) == ({"model.path"}, {"model.path"})
    api.post(f"/v1/runs/{resumed.json()['id']}/cancel")


def test_a_run_goes_on_in_its_own_pool_for_more_steps_than_it_has_had(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit({"training": {"max_steps": 5}}, pool="big").json()["id"]
    checkpointed(in_store, run)
    api.post(f"/v1/runs/{run}/cancel")

    done = problems(api.post("/v1/runs", json={"resume_from": run}))
    longer = {"resume_from": run, "config": {"training": {"max_steps": 6}}}
    same, other = (
        api.post("/v1/runs", json=longer | pool).json()["pool"] for pool in ({}, {"pool": "small"})
    )

    assert done["training.max_steps"] == (
        "is 5, and the run that is resumed has trained 5 steps: set it higher"
    )
    assert (same, other) == ("big", "small")


def test_a_context_longer_than_the_models_positions_is_refused(submit: Any, model: Path) -> None:
    (model / "config.json").write_text('{"max_position_embeddings": 64}')

    refused = problems(submit())

    assert refused["rollout.vllm.max_model_len"].startswith(
        "2048 is more than the 64 positions of the model: set it to 64 or less"
    )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"max_seq_len": 128}}, "data.max_seq_len 128 is more than the 64 positions"),
        ({"packing": {"tokens_per_step": 100}}, "is no multiple of the 64 tokens of a row"),
    ],
)
def test_supervised_rows_longer_than_the_models_positions_are_refused(
    api: httpx.Client, sums: None, model: Path, sections: dict[str, Any], said: str
) -> None:
    (model / "config.json").write_text('{"max_position_embeddings": 64}')
    data = {"dataset": "sums", **sections.get("data", {})}
    config = {"type": "sft", "model": {"path": str(model)}, **sections, "data": data}

    refused = api.post("/v1/runs", json={"config": config})

    assert any(said in one["message"] for one in refused.json()["problems"])


def test_routers_of_a_model_without_experts_are_refused(submit: Any, model: Path) -> None:
    wanted = {"algorithm": {"router": {"replay": True}}}
    (model / "config.json").write_text('{"hidden_size": 64}')

    refused = problems(submit(wanted))

    assert "has no experts to route to: leave algorithm.router out" in refused["algorithm.router"]
    (model / "config.json").write_text('{"num_experts": 8}')
    assert submit(wanted).status_code == 201


def test_adapters_on_a_mixture_of_experts_are_refused(submit: Any, model: Path) -> None:
    (model / "config.json").write_text('{"text_config": {"moe_num_experts": 8}}')

    refused = problems(submit({"model": {"path": str(model), "lora": {}}}))

    assert "mixture of experts" in refused["model.lora"]
    assert submit().status_code == 201


def test_an_adapter_that_names_no_base_is_refused(submit: Any, model: Path) -> None:
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text('{"r": 2}')
    weights = {"a": np.zeros((2, 2), np.float32)}
    save_file(weights, model / "adapter_model.safetensors")

    refused = problems(submit())

    assert "does not say which model it is for" in refused["model.path"]


def test_a_supervised_run_is_resumed_on_the_same_rows(
    api: httpx.Client, submit: Any, in_store: InStore, model: Path
) -> None:
    config = {"type": "sft", "model": {"source": "pretrained", "path": str(model)}}
    sent = {"config": config | {"data": {"dataset": "sums"}, "training": {"max_steps": 300}}}
    queued = api.post("/v1/runs", json=sent)
    assert queued.status_code == 201, queued.text
    run = queued.json()["id"]
    checkpointed(in_store, run)
    api.post(f"/v1/runs/{run}/cancel")

    other = {"training": {"rows_per_step": 5}, "data": {"train_on": "all"}}
    refused = problems(api.post("/v1/runs", json={"resume_from": run, "config": other}))
    resumed = api.post("/v1/runs", json={"resume_from": run})

    assert {"data", "training.rows_per_step"} <= refused.keys()
    assert resumed.status_code == 201, resumed.text


def test_a_model_is_taken_from_a_run_that_has_ended(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]
    checkpointed(in_store, run)

    live = problems(submit({"model": {"path": f"run:{run}"}}))
    api.post(f"/v1/runs/{run}/cancel")
    # Whatever the run is called by: what is queued names it by its id.
    ended = submit({"model": {"path": f"run:{run[:5]}"}})

    assert "its checkpoint is not its last one" in live["model.path"]
    assert ended.status_code == 201, ended.text
    assert ended.json()["config"]["model"]["path"] == f"run:{run}"


def test_the_positions_of_another_runs_model_limit_the_context(
    submit: Any, in_store: InStore, api: httpx.Client, gateway: GatewayProcess
) -> None:
    run = submit().json()["id"]
    checkpointed(in_store, run)
    api.post(f"/v1/runs/{run}/cancel")
    made = gateway.data / "runs" / run / "checkpoints" / "step-000005"
    made.mkdir(parents=True)
    (made / "config.json").write_text('{"max_position_embeddings": 64}')
    lacking = problems(submit({"model": {"path": f"run:{run}"}}))
    assert lacking["model.path"].startswith("checkpoint step-000005 lacks manifest.json; name an")
    (made / "manifest.json").write_text('{"files": {}}')

    refused = problems(submit({"model": {"path": f"run:{run}"}}))

    assert "2048 is more than the 64 positions" in refused["rollout.vllm.max_model_len"]


def test_a_run_without_a_checkpoint_cannot_be_the_model(api: httpx.Client, submit: Any) -> None:
    run = submit().json()["id"]
    api.post(f"/v1/runs/{run}/cancel")

    refused = problems(submit({"model": {"path": f"run:{run}"}}))

    assert refused["model.path"] == f"run grpo ({run}) was cancelled and has no checkpoint"
