"""Runs that are submitted: what is queued, warned of and refused."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from services.contracts.records import WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore, problems, upload, warnings

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

    (warning,) = warnings(api.get(f"/v1/runs/{run['id']}").json())
    assert warning.startswith("algorithm.kl.type: the gradient of k1 in the loss is zero")
    assert warnings(submit({}).json()) == []


def test_a_tool_server_that_nobody_has_named_is_refused_with_those_there_are(
    submit: Any, in_store: InStore
) -> None:
    parser = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
    episode = {"type": "tools", "servers": ["sums", "sum"]}
    tools = {"rollout": {"episode": episode, "vllm": {"extra": parser}}}

    async def join(store: Store) -> None:
        record = {"id": "w", "host": "h", "pid": 1, "state": "idle", "pool": "tools"}
        await store.workers.heartbeat(WorkerRecord(tool_servers=["sums"], **record))

    assert problems(submit(tools)).keys() == {
        "rollout.episode.servers.0",
        "rollout.episode.servers.1",
    }
    in_store(join)
    assert problems(submit(tools))["rollout.episode.servers.1"] == (
        "there is no MCP server 'sum'; there is sums. The operator names them in "
        "HEADRACE_MCP_SERVERS (NAME=URL) for the gateway and the rollout workers"
    )


def test_an_evaluation_on_trained_rows_gives_a_warning(api: httpx.Client, submit: Any) -> None:
    upload(api, "held-out", b'{"question": "91+91", "answer": "182"}')

    (warning,) = warnings(submit({"evaluation": {"dataset": "sums"}}).json())

    assert warning.startswith("evaluation.dataset: the run also trains on ")
    assert warnings(submit({"evaluation": {"dataset": "held-out"}}).json()) == []


def test_more_gpus_than_any_worker_has_give_a_warning(submit: Any, in_store: InStore) -> None:
    spread = {"rollout": {"vllm": {"tensor_parallel_size": 4}}}
    alone = warnings(submit(spread, pool="gpus").json())

    async def join(store: Store) -> None:
        record = {"pool": "gpus", "host": "h", "pid": 1, "state": "idle"}
        for gpus in (1, 2, None):
            await store.workers.heartbeat(WorkerRecord(id=f"w{gpus}", gpus=gpus, **record))

    in_store(join)

    (warning,) = warnings(submit(spread, pool="gpus").json())
    assert warning.startswith(
        "rollout.vllm.tensor_parallel_size: 4 is more than the 2 GPUs that a worker of pool gpus"
    )
    assert alone == warnings(submit(pool="gpus").json()) == []


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
    # 40 rows · 2.5 epochs / 8 prompts = 12.5 steps: 12 whole ones.
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
        ({"data": {"dataset": 5}}, "data.dataset", "must be text, not 5"),
        (
            {"training": {"max_steps": None}, "algorithm": {"prompts_per_step": 64}},
            "training.epochs",
            "1 × 40 rows make no step of 64 prompts",
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

    assert said == problems(submit({"model": {"path": str(empty) + "x"}}))["model.path"].replace(
        f"{empty}x", str(empty)
    ), "a client learns which folders exist"
    assert "with a config.json" in said


def test_a_mistyped_model_folder_is_not_taken_for_a_hub_name(
    submit: Any, model: Path, gateway: GatewayProcess
) -> None:
    folder = gateway.data / "models" / "smol-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")

    said = problems(submit({"model": {"path": "model/smol-135"}}))["model.path"]

    assert "there is no model at 'model/smol-135' (did you mean 'models/smol-135m'?)" in said

    # A download that has not ended yet.
    (gateway.data / "models" / "unrelated").mkdir()
    said = problems(submit({"model": {"path": "models/unrelated"}}))["model.path"]
    assert said.startswith("there is no model at 'models/unrelated': name a folder")


def test_a_model_whose_config_contradicts_its_weights_is_refused_or_warned_of(
    api: httpx.Client, submit: Any, model: Path
) -> None:
    weights = {f"model.layers.{at}.mlp.up_proj.weight": np.zeros((2, 2)) for at in range(3)}
    head = {"lm_head.weight": np.ones((4, 2)), "model.embed_tokens.weight": np.zeros((4, 2))}
    save_file(weights | head, model / "model.safetensors")
    config = {"num_hidden_layers": 2, "vocab_size": 4, "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(config))

    said = problems(submit())["model.path"]

    assert said.startswith("config.json says tie_word_embeddings, and the files have another")
    config["tie_word_embeddings"] = False
    (model / "config.json").write_text(json.dumps(config))
    (warning,) = warnings(api.get(f"/v1/runs/{submit().json()['id']}").json())
    assert warning.startswith("model.path: config.json says num_hidden_layers 2, and the weights'")


def test_a_teacher_has_to_be_there_and_to_know_the_same_tokens(
    submit: Any, model: Path, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text("{}")
    for folder, vocabulary in ((model, {"a": 0, "b": 1}), (teacher, {"a": 1, "b": 0})):
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))

    def taught(path: object) -> Any:
        algorithm = {"advantage": {"type": "reverse_kl"}, "teacher": {"path": str(path)}}
        return submit({"model": {"path": str(model)}, "algorithm": algorithm})

    said = problems(taught(teacher))["algorithm.teacher.path"]
    assert "another tokenizer than the policy" in said
    assert "'a' as 1, which is 0 here" in said
    assert "there is no model at" in problems(taught("nowhere"))["algorithm.teacher.path"]
    teacher = taught(model).json()["config"]["algorithm"]["teacher"]
    assert teacher == {"path": str(model), "endpoint": None, "model": None}


def test_a_supervised_run_on_rows_without_answers_is_refused(api: httpx.Client) -> None:
    upload(api, "no-answers", b'{"prompt": "a"}')
    config = {"type": "sft", "model": {"source": "scratch"}, "data": {"dataset": "no-answers"}}

    found = problems(api.post("/v1/runs", json={"config": config}))

    assert "have no answers to imitate" in found["data.dataset"]


def test_a_run_on_pairs_is_refused_rows_of_one_answer_and_takes_those_of_two(
    api: httpx.Client, model: Path
) -> None:
    upload(api, "dpo-pairs", b'{"prompt": "1+1", "chosen": "2", "rejected": "3"}')
    config = {"type": "sft", "objective": {"type": "dpo"}, "model": {"path": str(model)}}

    refused = api.post("/v1/runs", json={"config": config | {"data": {"dataset": "sums"}}})
    queued = api.post("/v1/runs", json={"config": config | {"data": {"dataset": "dpo-pairs"}}})

    said = problems(refused)["data.dataset"]
    assert "the rows of sums cannot be compared" in said
    assert "row 0 has no `chosen` answer" in said
    assert queued.status_code == 201, queued.text
    api.post(f"/v1/runs/{queued.json()['id']}/cancel")


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


def test_a_mixture_of_prompts_has_names_rows_and_steps_from_its_datasets(
    api: httpx.Client, submit: Any
) -> None:
    rows = b"".join(b'{"question": "%d-1", "answer": "%d"}\n' % (n, n - 1) for n in range(4))
    upload(api, "less", rows)
    mix = [{"dataset": "less", "repeats": 3, "template": "Less: {prompt}"}, {"dataset": "less"}]
    data = {"dataset": "sums", "mix": mix}
    own = api.get("/v1/datasets/sums").json()["rows"]
    small = {"algorithm": {"prompts_per_step": 2}, "training": {"max_steps": None, "epochs": 2}}
    body = {"recipe": "grpo", "config": {"model": {"path": "x/y"}, "data": data} | small}

    run = submit({"data": data} | small).json()
    planned = api.post("/v1/runs?dry_run=true", json=body).json()

    assert [one["name"] for one in run["config"]["data"]["mix"]] == ["less", "less#2"]
    assert run["dataset_rows"] == [own, 4, 4]
    assert run["max_steps"] == own + 12 + 4
    assert [(one["name"], one["per_epoch"]) for one in planned["mixture"]] == [
        ("sums", own),
        ("less", 12),
        ("less#2", 4),
    ]
    assert api.delete("/v1/datasets/less").status_code == 409


def test_a_dry_run_says_what_a_supervised_mixture_is_made_of(api: httpx.Client, sums: None) -> None:
    rows = b"".join(b'{"question": "%d-2", "answer": "%d"}\n' % (n, n - 2) for n in range(10))
    upload(api, "few", rows)
    mix = [{"dataset": "few", "repeats": 2}]
    data = {"dataset": "few", "mix": mix}
    body = {"type": "sft", "model": {"source": "scratch"}, "data": data}
    body |= {"validation": {"share": 0.1}}

    planned = api.post("/v1/runs?dry_run=true", json={"config": body}).json()
    mix[0]["repeats"] = 0.01
    refused = api.post("/v1/runs?dry_run=true", json={"config": body})

    assert [(one["name"], one["rows"], one["per_epoch"]) for one in planned["mixture"]] == [
        ("few", 9, 9),
        ("few#2", 9, 18),
    ]
    assert problems(refused)["data"].startswith("dataset few#2 gives 0.09 rows to an epoch: raise")


def test_what_is_wrong_with_a_dataset_of_a_mixture_is_named_by_its_key(submit: Any) -> None:
    def said(*mix: dict[str, Any]) -> dict[str, str]:
        return problems(submit({"data": {"dataset": "sums", "mix": list(mix)}}))

    assert "did you mean 'sums'" in said({"dataset": "summs"})["data.mix.0.dataset"]
    few = said({"dataset": "sums", "repeats": 0.001})["data.mix"]
    assert few.startswith("dataset sums#2 gives ")
    episode = said({"dataset": "sums", "episode": "nobodys"})["data.mix.0.episode"]
    assert "'nobodys' is not installed here" in episode


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
