"""A dry run shows the memory that a run needs, and refuses a run that cannot fit."""

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.devices import GPUDevice, LearnerDevices, LearnerHost
from services.contracts.records import HostLoad, WorkerRecord
from services.models.architectures import expected_shapes
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore, problems
from tests.unit.estimate.known import LLAMA_8B

GB = 10**9
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with the headers of an 8B Llama. Its weights are a hole in the file."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    (folder / "tokenizer_config.json").write_text("{}")
    shapes = expected_shapes(LLAMA_8B)
    assert shapes is not None
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


@pytest.fixture
def pool(in_store: InStore) -> str:
    """A pool with two GPUs of 80 GB for its learner, and one for its worker."""

    async def join(store: Store) -> None:
        gpus = [GPUDevice(uuid=f"GPU-{i}", name=H100, memory=80 * GB) for i in range(3)]
        await store.pools.report_devices("h100", LearnerDevices(ranks=2, gpus=gpus[:2]))
        worker = WorkerRecord(
            id="w", pool="h100", host="h", pid=1, state="idle", gpus=1, devices=gpus[2:]
        )
        await store.workers.heartbeat(worker)

    in_store(join)
    return "h100"


def on_one_gpu(in_store: InStore, pool: str, name: str, memory: int) -> str:
    """A pool whose learner and worker have one such GPU."""

    async def join(store: Store) -> None:
        gpus = [GPUDevice(uuid=f"GPU-{pool}", name=name, memory=memory)]
        await store.pools.report_devices(pool, LearnerDevices(ranks=1, gpus=gpus))
        worker = WorkerRecord(
            id=pool, pool=pool, host="h", pid=1, state="idle", gpus=1, devices=gpus
        )
        await store.workers.heartbeat(worker)

    in_store(join)
    return pool


@pytest.fixture
def one_gpu(in_store: InStore) -> str:
    return on_one_gpu(in_store, "a40", "NVIDIA A40", 44 * GB)


@pytest.fixture
def small_gpu(in_store: InStore) -> str:
    return on_one_gpu(in_store, "a100", "NVIDIA A100-SXM4-40GB", 40 * GB)


def dry(
    api: httpx.Client,
    folder: Path,
    pool: str,
    more: dict[str, Any] | None = None,
    **training: Any,
) -> dict[str, Any]:
    config = {
        "model": {"path": str(folder), **(more or {})},
        "data": {"dataset": "sums"},
        "sampling": {"max_tokens": 512},
        "rollout": {"vllm": {"max_model_len": 1024}},
        "training": training,
    }
    request = {"recipe": "grpo", "config": config, "pool": pool}
    response = api.post("/v1/runs?dry_run=true", json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_dry_run_says_what_is_needed_and_queues_nothing(
    api: httpx.Client, sums: None, llama: Path, pool: str
) -> None:
    before = [run["id"] for run in api.get("/v1/runs?limit=1000").json()["runs"]]
    answer = dry(api, llama, pool, activation_checkpointing=False)
    estimate = answer["estimate"]

    assert answer["config"]["optimizer"]["max_grad_norm"] == 1.0
    assert estimate["learner"]["gpu"] == H100
    assert estimate["learner"]["count"] == 2
    # 16 bytes of each of 8.03 billion weights on two ranks are 64 GB; activations come on top.
    assert estimate["fits"] is False
    advice = estimate["learner"]["advice"]
    assert 'set training.activation_checkpointing to "auto"' in advice
    assert answer["refusals"][0].startswith("training: a rank of the learner needs ")
    assert estimate["rollout"]["fits"]
    assert [run["id"] for run in api.get("/v1/runs?limit=1000").json()["runs"]] == before


def test_a_run_that_cannot_fit_is_refused_with_the_way_out(
    submit: Any, llama: Path, pool: str
) -> None:
    given = {"model": {"path": str(llama)}, "training": {"activation_checkpointing": False}}
    response = submit(given, pool=pool)

    assert response.status_code == 422
    reason = problems(response)["training"]
    assert "and has 80 GB of NVIDIA H100 80GB HBM3; set training." in reason


def test_a_run_that_its_learners_host_cannot_hold_is_refused_with_the_way_out(
    api: httpx.Client, sums: None, submit: Any, llama: Path, in_store: InStore
) -> None:
    async def join(store: Store) -> None:
        gpus = [GPUDevice(uuid=f"GPU-{i}", name=H100, memory=80 * GB) for i in range(8)]
        host = LearnerHost(free=64 * GB, ranks=8)
        await store.pools.report_devices(
            "small-host", LearnerDevices(ranks=8, gpus=gpus, host=host)
        )

    in_store(join)
    response = submit({"model": {"path": str(llama)}}, pool="small-host")

    assert response.status_code == 422
    # 12 bytes of each of 8.03 billion weights.
    assert problems(response)["training"].startswith(
        "the learner's host has too little memory (a checkpoint while it is written 96 GB, the "
        "newest version 16 GB); train adapters (model.lora), or"
    )
    small: dict[str, Any] = {"lora": {}}
    assert dry(api, llama, "small-host", small)["refusals"] == []


def test_a_model_that_a_host_without_gpus_cannot_hold_is_refused_in_words_that_fit_it(
    api: httpx.Client, sums: None, submit: Any, llama: Path, in_store: InStore
) -> None:
    async def join(store: Store) -> None:
        for pool, total in (("laptop", 32 * GB), ("busy", 4000 * GB)):
            host = LearnerHost(free=30 * GB, ranks=1, name="box", total=total)
            await store.pools.report_devices(pool, LearnerDevices(ranks=1, gpus=[], host=host))
            load = HostLoad(
                cores=2, idle_cores=2.0, memory=GB, free_memory=29 * GB, total_memory=total
            )
            worker = WorkerRecord(
                id=pool, pool=pool, host="box", pid=1, state="idle", gpus=0, host_load=load
            )
            await store.workers.heartbeat(worker)

    in_store(join)
    response = submit({"model": {"path": str(llama)}}, pool="laptop")

    assert response.status_code == 422
    reason = problems(response)["training"]
    assert reason.startswith("the learner (with ")
    assert " GB for workers on its host) needs " in reason
    assert "one rank on CPUs, float32" in reason
    assert "and its host has 32 GB of memory in all; " in reason
    assert "GPU" not in reason
    assert "CUDA" not in reason

    busy = dry(api, llama, "busy")
    assert busy["refusals"] == []
    (warning,) = [said for said in busy["warnings"] if said.startswith("the learner (with ")]
    assert "It is not refused: the estimate may be off" in warning


def test_a_run_whose_checkpoints_find_no_room_on_the_volume_is_warned_of(
    api: httpx.Client, sums: None, llama: Path, pool: str
) -> None:
    many: dict[str, Any] = {
        "keep_checkpoints": 100_000,
        "max_steps": 1_000_000,
        "checkpoint_every": 1,
    }
    answer = dry(api, llama, pool, **many)
    (said,) = [warning for warning in answer["warnings"] if "data volume" in warning]
    assert said.startswith("the run keeps 9,")
    assert "on the data volume (checkpoints 9," in said
    assert "it is paused while the disk is full; " in said


def test_on_one_gpu_vllm_gets_the_share_that_the_learner_leaves(
    api: httpx.Client, sums: None, llama: Path, one_gpu: str
) -> None:
    answer = dry(api, llama, one_gpu, {"lora": {}}, tokens_per_microbatch=4096)

    share = answer["config"]["rollout"]["vllm"]["gpu_memory_utilization"]
    assert share > 0.4
    assert any(f"gpu_memory_utilization is {share:g}: with 0.4" in w for w in answer["warnings"])
    estimate = answer["estimate"]
    assert estimate["fits"]
    assert estimate["rollout"]["memory"] == pytest.approx(share * 44 * GB)
    assert estimate["learner"]["memory"] == pytest.approx((1 - share) * 44 * GB)

    whole = dry(api, llama, one_gpu)
    assert whole["config"]["rollout"]["vllm"]["gpu_memory_utilization"] is None
    assert any("do not fit on it together" in warning for warning in whole["warnings"])
    assert whole["refusals"]


def test_on_one_gpu_that_is_too_small_for_both_learner_and_vllm_take_turns(
    api: httpx.Client, sums: None, llama: Path, small_gpu: str
) -> None:
    answer = dry(api, llama, small_gpu, {"lora": {}}, tokens_per_microbatch=4096)

    vllm = answer["config"]["rollout"]["vllm"]
    assert (vllm["sleeps"], vllm["gpu_memory_utilization"]) == (True, 0.9)
    assert any("take turns on this GPU, because they do not" in w for w in answer["warnings"])
    assert answer["estimate"]["fits"]
    assert answer["refusals"] == []


def test_without_a_known_gpu_every_run_is_accepted(
    api: httpx.Client, submit: Any, llama: Path
) -> None:
    answer = dry(api, llama, "nobody")
    assert (answer["estimate"]["fits"], answer["refusals"]) == (None, [])
    assert submit({"model": {"path": str(llama)}}, pool="nobody").status_code == 201


def test_only_a_model_on_the_host_has_an_estimate(
    api: httpx.Client, sums: None, model: Path, pool: str
) -> None:
    assert dry(api, model, pool)["estimate"] is None


def test_the_command_prints_what_is_needed_and_says_by_its_exit_code_whether_it_fits(
    gateway: GatewayProcess, sums: None, llama: Path, pool: str
) -> None:
    command = [sys.executable, "-m", "headrace", "submit", "grpo", "--dry-run"]
    command += ["--set", f"model.path={llama}", "--set", "data.dataset=sums", "--pool", pool]
    command += ["--set", "training.activation_checkpointing=false"]
    environment = os.environ | {
        "HEADRACE_GATEWAY_URL": gateway.url,
        "HEADRACE_DATA": str(gateway.data),
        "PYTHONPATH": os.getcwd(),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["weights", "16.1", "GB"] in lines
    assert ["needed", "112.4", "GB", "of", "a", "host", "that", "is", "not", "known"] in lines
    assert ["versions", "for", "the", "workers", "48.2", "GB"] in lines
    _, _, refused = done.stdout.partition("it would be refused:")
    assert " ".join(refused.split()).startswith("training: a rank of the learner needs ")
    assert 'set training.activation_checkpointing to "auto"' in " ".join(refused.split())
