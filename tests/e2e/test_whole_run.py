"""All real processes make a small model and train it with GRPO, over REST, with a tool and with
`top_k`. An agent plays a session.

One vLLM serves all runs: they have the same options and the same model files.
"""

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.cli.client import Gateway
from services.caches import FOLDERS
from services.cli.host.demo import upload_sums
from services.launch import Stack, UpOptions
from tests.e2e import recorded_vllm
from tests.integration.installation.test_agents import client_of, lease, payload

GROUPS, STEPS = 8, 4
SAMPLING = {"top_k": 12, "top_p": 0.95}
VLLM = {
    "max_model_len": 256,
    "max_num_seqs": 64,
    "dtype": "float32",
    "extra": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"},
}

# Metrics of every step with any objective; pass@k for groups of 4.
ALWAYS = {
    *("reward/mean", "reward/std", "reward/groups_without_variance"),
    *("reward/pass_at_1", "reward/pass_at_2", "reward/pass_at_4"),
    *("response/tokens_mean", "response/truncated"),
    *("train/entropy", "train/ratio_mean", "train/ratio_max"),
    *("train/clip_low", "train/clip_high", "train/ess", "train/grad_norm"),
    *("train/corrected_low", "train/corrected_high"),
    *("mismatch/sampler_kl", "mismatch/sampler_logprob_max"),
    *("staleness/mean", "staleness/max"),
    *("throughput/tokens_per_second", "memory/peak_bytes", "bottleneck"),
    *("time/waiting_for_groups", "time/workers_waiting_for_admission"),
}
COUNT = "staleness/count_"
GAPS = ("mismatch/logprob_max", "mismatch/canary")
TOOL = {"type": "calculator", "start": "(", "end": "=", "output_start": "", "output_end": ")"}


def finished(api: Gateway, recipe: str, config: dict[str, Any]) -> dict[str, Any]:
    run = api.post("/v1/runs", json={"recipe": recipe, "config": config})["id"]
    for _ in api.events(run):
        pass
    record: dict[str, Any] = api.get(f"/v1/runs/{run}")
    assert record["state"] == "succeeded", record["reason"]
    return record


def paths() -> str:
    """Where Python finds `opened/sitecustomize.py`, and Headrace."""
    here = Path(__file__)
    return f"{here.with_name('opened')}:{here.parents[2]}"


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of vLLM's requests and answers (`recorded_vllm`)."""
    return tmp_path_factory.mktemp("vllm") / "requests"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of files that processes open in shared folders (`opened/sitecustomize.py`)."""
    return tmp_path_factory.mktemp("opened") / "files"


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, requests: Path, opened: Path
) -> Iterator[Stack]:
    data: Path = tmp_path_factory.mktemp("installation")
    recording = {
        "HEADRACE_VLLM_COMMAND": f"{sys.executable} -m tests.e2e.recorded_vllm",
        recorded_vllm.FILE: str(requests),
        "OPENED_FILES_LOG": str(opened),
        "PYTHONPATH": paths(),
    }
    with pytest.MonkeyPatch.context() as patch:
        # torch names its own folder in the environment of the tests' process.
        for variable in FOLDERS:
            patch.delenv(variable, raising=False)
        with Stack(UpOptions(data=data, port=0, reward_port=0, environment=recording)) as stack:
            yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Gateway:
    gateway = Gateway(stack.gateway_url, key=stack.api_key)
    upload_sums(gateway)
    return gateway


@pytest.fixture(scope="module")
def model(api: Gateway) -> str:
    config = {
        # With a chat template.
        "model": {"max_length": 256, "tokenizer": {"type": "bpe", "vocabulary": 512}},
        "training": {"max_steps": 20, "rows_per_step": 32, "checkpoint_every": 10},
    }
    return f"run:{finished(api, 'demo_sft', config)['id']}"


def ask_finished(stack: Stack, run: str, supervised: str) -> None:
    """Ask checkpoints of runs that are over, with the vLLM of `run`: each answers with its own
    weights, in a required form."""
    with openai.OpenAI(
        base_url=f"{stack.gateway_url}/openai/v1", api_key=stack.api_key, max_retries=20
    ) as client:

        def scores(model: str) -> list[float]:
            """Return the log-probabilities of fixed tokens."""
            answer = client.completions.create(
                model=model, prompt="27+35=", echo=True, logprobs=1, max_tokens=0
            )
            assert answer.model.startswith(model)
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            # The first token has none.
            return (logprobs.token_logprobs or [])[1:]

        earlier, last = (scores(f"{supervised}@{step}") for step in (10, 20))
        assert scores(supervised) == pytest.approx(last, abs=1e-4)
        assert earlier != pytest.approx(last, abs=1e-2)
        schema: Any = {"type": "json_schema", "json_schema": {"schema": {"const": [4]}}}
        asked: Any = [{"role": "user", "content": "2+2="}]
        formed = client.chat.completions.create(
            model=f"{run}@{STEPS // 2}", messages=asked, response_format=schema, max_tokens=8
        )
        assert formed.model == f"{run}@{STEPS // 2}"
        assert json.loads(formed.choices[0].message.content or "") == [4]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("staleness", [0, 2])
def test_groups_are_trained_within_the_staleness_bound(
    api: Gateway, model: str, stack: Stack, staleness: int
) -> None:
    record = finished(
        api,
        "demo_grpo",
        {
            "model": {"path": model},
            "algorithm": {"prompts_per_step": GROUPS, "samples_per_prompt": 4},
            "rollout": {"max_staleness": staleness, "episode": TOOL, "vllm": VLLM},
            "sampling": SAMPLING,
            "training": {"max_steps": STEPS, "checkpoint_every": 2, "keep_checkpoints": 2},
            "evaluation": {"dataset": "demo-test", "rows": 16},
        },
    )
    if staleness == 0:
        ask_finished(stack, record["id"], model.removeprefix("run:"))
    steps = api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    trained = [step for step in steps if "staleness/max" in step]
    assert record["committed_step"] == STEPS
    assert len(trained) == STEPS
    for step in trained:
        assert step.keys() >= ALWAYS
        groups = {int(key.removeprefix(COUNT)): step[key] for key in step if key.startswith(COUNT)}
        assert groups.keys() <= set(range(staleness + 1))
        assert sum(groups.values()) == GROUPS
        assert max(groups) == step["staleness/max"]
    # Sampler and learner at the same version: later steps of an asynchronous run have no such gap.
    gaps = [step["mismatch/logprob_max"] for step in trained if "mismatch/logprob_max" in step]
    assert max(gaps) <= 1e-3
    assert len(gaps) == STEPS or staleness > 0
    # Only a synchronous run has staleness 0 in all steps.
    assert any(step["staleness/max"] > 0 for step in trained) == (staleness > 0)


@pytest.mark.timeout(400)
def test_sampler_and_learner_agree_when_they_take_turns(api: Gateway) -> None:
    """One side is idle while the other computes. The answers are long: the model has hardly been
    trained."""
    hardly_trained = {
        "model": {"max_length": 256, "tokenizer": {"type": "bpe", "vocabulary": 512}},
        "training": {"max_steps": 1, "rows_per_step": 32},
    }
    record = finished(
        api,
        "nanochat_grpo",
        {
            "model": {"path": f"run:{finished(api, 'demo_sft', hardly_trained)['id']}"},
            "data": {"dataset": "demo-train"},
            "evaluation": None,
            "algorithm": {"prompts_per_step": 8},
            "rollout": {"episode": TOOL, "vllm": VLLM},
            "sampling": {**SAMPLING, "max_tokens": 200},
            "training": {"epochs": None, "max_steps": STEPS},
        },
    )
    steps = api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    gaps = {key: [step[key] for step in steps if key in step] for key in GAPS}
    assert all(len(values) >= STEPS - 1 for values in gaps.values()), gaps
    assert all(max(values) <= 1e-4 for values in gaps.values()), gaps


def play(session: dict[str, Any], question: str, calls: bool) -> None:
    """A turn; with `calls`, one that calls a tool, and another with the tool's result."""
    arguments = {"const": {"a": 2}}
    function: Any = {"name": "add", "strict": True, "parameters": arguments}
    with client_of(session) as client:
        chat: list[Any] = [{"role": "user", "content": question}]
        more: Any = {}
        if calls:
            # So small a model would not call it by itself.
            tools: Any = [{"type": "function", "function": function}]
            first = client.chat.completions.create(
                model="policy",
                messages=chat,
                tools=tools,
                tool_choice={"type": "function", "function": {"name": "add"}},
            )
            assert first.choices[0].finish_reason == "tool_calls"
            (call,) = first.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2})
            chat += [first.choices[0].message]
            chat += [{"role": "tool", "tool_call_id": call.id, "content": "4"}]
            schema: Any = {"type": "json_schema", "json_schema": {"schema": {"const": [4]}}}
            more = {"tools": tools, "response_format": schema}
        answered = client.chat.completions.create(
            model="policy", messages=chat, max_tokens=8, **more
        )
        assert answered.choices[0].message.role == "assistant"
        assert not calls or json.loads(answered.choices[0].message.content or "") == [4]
        deep: Any = {"id": "c", "type": "function"}
        deep["function"] = {"name": "add", "arguments": "[" * 100_000}
        chat = [{"role": "assistant", "content": "", "tool_calls": [deep]}]
        with pytest.raises(openai.BadRequestError, match="nested too deeply"):
            client.chat.completions.create(model="policy", messages=chat)


@pytest.mark.timeout(400)
def test_what_is_trained_of_a_session_is_what_vllm_was_asked_and_sampled(
    api: Gateway, model: str, stack: Stack, requests: Path
) -> None:
    config = {
        "model": {"path": model},
        "data": {"chat_template": "auto"},
        # One prompt more than are played, so the learner leaves the group in the stream.
        "algorithm": {"prompts_per_step": 2, "samples_per_prompt": 2},
        "rollout": {"episode": {"type": "sessions", "idle_seconds": 120}, "vllm": VLLM},
        "sampling": {**SAMPLING, "max_tokens": 160},
        "training": {"max_steps": 1},
        "evaluation": None,
    }
    run = api.post("/v1/runs", json={"recipe": "demo_grpo", "config": config})["id"]
    authorization = {"Authorization": f"Bearer {stack.api_key}"}
    with httpx.Client(base_url=stack.gateway_url, headers=authorization, timeout=120) as http:
        group = lease(http, run)
        before = len(requests.read_text().splitlines()) if requests.exists() else 0
        for session, calls in zip(group["sessions"], (True, False), strict=True):
            play(session, group["prompt"], calls)
            ended = f"/v1/sessions/{session['id']}"
            assert http.post(f"{ended}/reward", json={"reward": float(calls)}).status_code == 200
            assert http.post(f"{ended}/end").status_code == 200
    trained = asyncio.run(payload(stack.redis_url, run, group["task"]))
    api.post(f"/v1/runs/{run}/cancel")

    turns = [json.loads(line) for line in requests.read_text().splitlines()[before:]]
    seen = [(turn["prompt"], turn["sampled"]) for turn in turns]
    assert len(seen) == 3
    # The second turn's prompt begins with what the first was asked and has answered.
    (asked, called), (later, _), _ = seen
    assert later[: len(asked) + len(called)] == asked + called

    found, start = [], 0
    for sample, length in enumerate(map(int, trained.lengths)):
        (whole,) = trained.conversations_of(sample)
        tokens = trained.tokens[start : start + length][whole.places].tolist()
        mask = trained.loss_mask[start : start + length][whole.places].tolist()
        prompt = trained.prompt_tokens[: whole.prompt].tolist()
        start += length
        begins = [at for at in range(length) if mask[at] and not (at and mask[at - 1])]
        for at in begins:
            end = next((n for n in range(at, length) if not mask[n]), length)
            found.append((prompt + tokens[:at], tokens[at:end]))
    assert found == seen


@pytest.mark.timeout(400)
def test_a_whole_run_reads_no_file_that_another_user_could_have_made(
    api: Gateway, model: str, stack: Stack, opened: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = model.removeprefix("run:")
    assert "<!doctype html>" in api.text(f"/v1/runs/{run}/report")
    record = api.get(f"/v1/runs/{run}")
    assert record["state"] == "succeeded"
    checkpoint = str(stack.data / record["checkpoint"])
    recording = os.environ | {"OPENED_FILES_LOG": str(opened), "PYTHONPATH": paths()}
    for folder in FOLDERS:
        recording.pop(folder, None)
    command = [sys.executable, "-m", "headrace", "chat", checkpoint, "1+2="]
    subprocess.run(command, env=recording, check=True, capture_output=True, timeout=120)

    lines = [line.partition("\t") for line in opened.read_text().splitlines()]
    processes = [what for kind, _, what in lines if kind == "process"]
    parts = ("services.gateway", "-m reward", "-m rollout", "learner", "recorded_vllm",
             "services.report", "learner.tools.chat")  # fmt: skip
    for part in parts:
        assert any(part in process for process in processes), part
    # A name that nobody can guess cannot be taken first.
    own = (
        str(tmp_path_factory.getbasetemp()),
        *(what for kind, _, what in lines if kind == "made"),
    )
    deleted: list[str] = []
    foreign = set()
    for kind, _, path in lines:
        if kind == "deleted":
            deleted.append(path)
        elif kind == "read" and not path.startswith((*own, *deleted)):
            foreign.add(path)
    assert foreign == set()
    cache = stack.data / "cache"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def nanochat(folder: Path) -> str:
    """A small model of nanochat's architecture, with random weights."""
    # Not at the top: torch names its own cache folder in the environment of all processes here.
    from transformers import NanoChatConfig, NanoChatForCausalLM

    from learner.model.loading.scratch import make_model
    from services.contracts.config.model import ScratchModel

    tokenizer = make_model(ScratchModel(source="scratch"), 0).tokenizer
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = NanoChatConfig(vocab_size=len(tokenizer), eos_token_id=1, **sizes, **heads)
    NanoChatForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.timeout(400)
def test_nanochats_recipe_trains_nanochats_architecture(api: Gateway, tmp_path: Path) -> None:
    """Its norms have no weights, it normalises queries and keys, and it caps its logits."""
    record = finished(
        api,
        "nanochat_grpo",
        {
            "model": {"path": nanochat(tmp_path / "nanochat")},
            "data": {"dataset": "demo-train"},
            "algorithm": {"prompts_per_step": 4},
            "rollout": {"episode": TOOL, "vllm": VLLM},
            "sampling": {"top_k": 12, "max_tokens": 32},
            "optimizer": {"lr": 1e-3},
            "training": {"epochs": None, "max_steps": 2},
            "evaluation": {"dataset": "demo-test", "every": 2, "rows": 4, "samples": 4},
        },
    )
    steps = api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    trained = [step for step in steps if "train/loss" in step]
    assert [step["version"] for step in trained] == [1, 2]
    gaps = {key: [step[key] for step in trained if key in step] for key in GAPS}
    assert all(values and max(values) <= 1e-4 for values in gaps.values()), gaps
    assert any("evaluation/pass_at_4" in step for step in steps)


@pytest.mark.timeout(400)
def test_a_reinforcement_job_of_openais_client_keeps_its_answers_to_a_schema(
    stack: Stack, model: str
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}+1"}], "answer": str(n + 1)}
        for n in range(8)
    ]
    source = "def grade(sample, item):\n    return {'yes': 1.0, 'no': 0.5}[sample['output_json']]"
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    options: dict[str, Any] = {
        "grader": {"type": "python", "name": "said", "source": source},
        "response_format": schema,
        "hyperparameters": {"n_epochs": 1, "batch_size": 4, "compute_multiplier": 0.5},
    }
    url = f"{stack.gateway_url}/openai/v1"
    with openai.OpenAI(base_url=url, api_key=stack.api_key) as client:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file = client.files.create(file=("rows.jsonl", content), purpose="fine-tune")
        method: Any = {"type": "reinforcement", "reinforcement": options}
        jobs = client.fine_tuning.jobs
        job = jobs.create(model=model, training_file=file.id, method=method)
        streamed = httpx.get(
            f"{url}/fine_tuning/jobs/{job.id}/events?stream=true",
            headers={"Authorization": f"Bearer {stack.api_key}"},
            timeout=300,
        )
        done = jobs.retrieve(job.id)
        results = client.files.content(done.result_files[0]).text

    assert streamed.text.endswith("data: [DONE]\n\n")
    assert (done.status, done.error) == ("succeeded", None)
    header, *steps = [line.split(",") for line in results.splitlines()]
    assert header[:2] == ["step", "train_mean_reward"]
    assert [int(step[0]) for step in steps] == [1, 2]
    # Any other answer would have no reward.
    assert all(0.5 <= float(step[1]) <= 1 for step in steps)
